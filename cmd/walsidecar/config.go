package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/sidecar/settings"
)

// newConfigCommand makes `walsidecar config`: every setting with value, default, source.
func newConfigCommand(a *app) *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "list every setting with its value, default and source",
		Long: "List every setting with its value, default and source. A flag overrides the environment,\n" +
			"the environment overrides the default. A malformed value is an error.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := loadSettings(cmd)
			if err != nil {
				return err
			}
			if check {
				return checkConfig(a)
			}
			return printConfig(a, s)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "print nothing; an unknown WALSIDECAR_* variable is an error too")
	addSettingFlags(cmd)
	return cmd
}

// unknownSettings are WALSIDECAR_* variables that are no settings.
type unknownSettings struct{ error }

// checkConfig fails when a WALSIDECAR_* variable is no setting.
func checkConfig(a *app) error {
	var faults []error
	for _, u := range settings.Unknown() {
		faults = append(faults, errors.New(u.String()))
	}
	if err := errors.Join(faults...); err != nil {
		return unknownSettings{err}
	}
	return nil
}

func printConfig(a *app, s *settings.Settings) error {
	if a.json {
		for _, setting := range s.List() {
			if err := a.printJSON(setting); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "SETTING\tVALUE\tDEFAULT\tSOURCE\tMEANING")
	for _, s := range s.List() {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s; %s\n", s.Name, orDash(s.Value), orDash(s.Default), s.Source, s.Meaning, s.Legal)
	}
	return w.Flush()
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
