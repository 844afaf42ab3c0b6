package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/walsidecar/walsidecar/sidecar/settings"
)

// addSettingFlags gives cmd a flag for each setting of these names (WALSIDECAR_SOCKET),
// or for every setting when no name is given.
func addSettingFlags(cmd *cobra.Command, names ...string) {
	for _, s := range settings.Describe() {
		if len(names) > 0 && !slices.Contains(names, s.Name) {
			continue
		}
		cmd.Flags().String(s.Flag, "", fmt.Sprintf("%s (%s, default %s)", s.Meaning, s.Name, s.Default))
	}
}

// loadSettings reads all settings, with those of cmd's setting flags that were given over
// the environment.
func loadSettings(cmd *cobra.Command) (*settings.Settings, error) {
	given := map[string]string{}
	for _, s := range settings.Describe() {
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if f.Name == s.Flag {
				given[s.Flag] = f.Value.String()
			}
		})
	}
	return settings.Load(given)
}
