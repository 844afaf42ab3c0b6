package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// settingSocket is the one setting that commands which talk to a sidecar use.
const settingSocket = "WALSIDECAR_SOCKET"

// lostAfter is how long a command tries to reach a sidecar that it has lost, unless
// --timeout says otherwise.
const lostAfter = 5 * time.Second

// addClientFlags gives cmd the flags of a command that talks to a sidecar.
func addClientFlags(cmd *cobra.Command) { addSettingFlags(cmd, settingSocket) }

// dial connects to the sidecar of cmd's settings.
func dial(cmd *cobra.Command, giveUpAfter time.Duration, options ...walsidecar.Option) (*walsidecar.Client, error) {
	s, err := loadSettings(cmd)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), giveUpAfter)
	defer cancel()
	return walsidecar.Dial(ctx, string(s.Socket), append(options, walsidecar.WithGiveUpAfter(giveUpAfter))...)
}
