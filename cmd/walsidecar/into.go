package main

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/failover"
	"github.com/walsidecar/walsidecar/sidecar"
	"github.com/walsidecar/walsidecar/sidecar/settings"
)

// What has become of a log with --into.
const (
	adopted        = "was taken over and is served by that sidecar"
	alreadyAdopted = "is served by that sidecar already"
	handedBack     = "is drained and handed back"
)

// intoOptions are the options of an adoption: the sidecar's own settings hold, but for a
// store that is named.
func intoOptions(cmd *cobra.Command, device string) (*failover.Options, error) {
	s, err := loadSettings(cmd)
	if err != nil {
		return nil, err
	}
	o := &failover.Options{Device: device, Fencing: fencingOf(s)}
	// The environment is this command's, and the log goes on in the sidecar's.
	if cmd.Flags().Changed("store") {
		o.Store = string(s.Store)
		if s.Store != settings.NoStore && !strings.Contains(o.Store, "://") {
			o.Store, err = filepath.Abs(o.Store)
		}
	}
	return o, err
}

// takeOverInto has a running sidecar adopt the log, or hand it back.
func (a *app) takeOverInto(ctx context.Context, socket string, release bool, o failover.Options) error {
	verb, become := "adopt", adopted
	if release {
		verb, become = "release", handedBack
	}
	r, err := sidecar.Control(ctx, socket, verb, o, func(text string) { a.progress("%s", text) })
	a.progress("")
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	if r.Already {
		become = alreadyAdopted
	}
	return a.printTakeover(r, become)
}
