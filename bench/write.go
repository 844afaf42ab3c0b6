package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"

	"github.com/walsidecar/walsidecar/bench/report"
)

// runReport makes tables and plots of a file of results: of cells, or of `more`.
func runReport(_ context.Context, args []string) error {
	f := flag.NewFlagSet("report", flag.ContinueOnError)
	in := f.String("in", "", "file of results")
	page := f.String("page", "", "Markdown page to write the tables into, between its markers `cells` or `more`; without it they are printed")
	plots := f.String("plots", "", "directory for the plots; without it there are none")
	name := f.String("name", "", "of the markers, in place of `cells` or `more`")
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
	if len(results.Runs) == 0 {
		return put(*page, cmp.Or(*name, "more"), results.More())
	}
	link := *plots
	if *page != "" && *plots != "" {
		if link, err = filepath.Rel(filepath.Dir(*page), *plots); err != nil {
			return err
		}
	}
	if *plots != "" {
		if err := results.Plots(*plots); err != nil {
			return err
		}
	}
	return put(*page, cmp.Or(*name, "cells"), results.Markdown(filepath.ToSlash(link)))
}

// put writes text between the markers of a page, or prints it without one.
func put(page, name, text string) error {
	if page == "" {
		fmt.Print(text)
		return nil
	}
	return report.WriteBetween(page, name, text)
}
