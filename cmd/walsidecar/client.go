package main

import (
	"context"
	"errors"
	"io/fs"
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
func addClientFlags(cmd *cobra.Command) {
	addSettingFlags(cmd, settingSocket)
	cmd.Flags().String(flagLog, "", "the log, by UUID or by the name of its node, where the sidecar has adopted others (its own unless given)")
}

// flagLog selects one of the logs that a sidecar hosts.
const flagLog = "log"

// dial connects to the sidecar of cmd's settings; once lost for so long, it is given up.
func dial(cmd *cobra.Command, giveUpAfter time.Duration) (*walsidecar.Client, error) {
	return connect(cmd, giveUpAfter, walsidecar.WithGiveUpAfter(giveUpAfter), walsidecar.WithDoor(walsidecar.DoorSocket))
}

// dialRestarting is dial for a command that survives restarts of the sidecar: one that is
// just being restarted is waited for as one that was lost later. Where there is no socket at
// all, none was lost.
func dialRestarting(cmd *cobra.Command, giveUpAfter time.Duration) (*walsidecar.Client, error) {
	seen := false
	for until := time.Now().Add(giveUpAfter); ; time.Sleep(dialAgainAfter) {
		client, err := dial(cmd, giveUpAfter)
		seen = seen || !errors.Is(err, fs.ErrNotExist)
		if err == nil || !seen || !errors.Is(err, walsidecar.ErrDisconnected) || time.Now().After(until) {
			return client, err
		}
	}
}

// dialAgainAfter is the pause between two attempts of dialRestarting.
const dialAgainAfter = 50 * time.Millisecond

// dialPatiently is dial for a command that waits for a lost sidecar for ever: only the first
// connection must come within the time.
func dialPatiently(cmd *cobra.Command, first time.Duration) (*walsidecar.Client, error) {
	return connect(cmd, first, walsidecar.WithDoor(walsidecar.DoorSocket))
}

func connect(cmd *cobra.Command, first time.Duration, options ...walsidecar.Option) (*walsidecar.Client, error) {
	s, err := loadSettings(cmd)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), first)
	defer cancel()
	if log := cmd.Flags().Lookup(flagLog); log != nil && log.Changed {
		options = append(options, walsidecar.WithLog(log.Value.String()))
	}
	return walsidecar.Dial(ctx, string(s.Socket), options...)
}

// ask runs one question against the sidecar and closes the connection.
func ask(cmd *cobra.Command, question func(context.Context, *walsidecar.Client) error) error {
	client, err := dial(cmd, lostAfter)
	if err != nil {
		return err
	}
	defer client.Close()
	return question(cmd.Context(), client)
}
