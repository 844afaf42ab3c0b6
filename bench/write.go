package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"

	"github.com/walsidecar/walsidecar/bench/report"
)

// runReport makes tables and plots of a file of results.
func runReport(_ context.Context, args []string) error {
	f := flag.NewFlagSet("report", flag.ContinueOnError)
	in := f.String("in", "", "file of results")
	page := f.String("page", "", "Markdown page to write the tables into, between its markers `cells`; without it they are printed")
	plots := f.String("plots", "", "directory for the plots; without it there are none")
	if err := parse(f, args); err != nil {
		return err
	}
	if *in == "" {
		return usageError{errors.New("report needs -in")}
	}
	results, err := report.Load(*in)
	if err != nil {
		return err
	}
	link := *plots
	if *page != "" && *plots != "" {
		if link, err = filepath.Rel(filepath.Dir(*page), *plots); err != nil {
			return err
		}
	}
	text := results.Markdown(filepath.ToSlash(link))
	if *plots != "" {
		if err := results.Plots(*plots); err != nil {
			return err
		}
	}
	if *page == "" {
		fmt.Print(text)
		return nil
	}
	return report.WriteBetween(*page, "cells", text)
}
