package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// newStatusCommand makes `walsidecar status`.
func newStatusCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show how the log is",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, func(ctx context.Context, c *walsidecar.Client) error {
				document, err := c.Status(ctx)
				if err != nil {
					return err
				}
				if a.json {
					_, err = fmt.Fprintf(a.stdout, "%s\n", document)
					return err
				}
				return printDocument(a.stdout, document)
			})
		},
	}
	addClientFlags(cmd)
	return cmd
}

// printDocument prints a JSON object for a person: one line per field in the object's own
// order, those of objects and lists inside it with the names joined by dots.
func printDocument(out io.Writer, document []byte) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	dec := json.NewDecoder(bytes.NewReader(document))
	dec.UseNumber()
	if err := printValue(w, dec, ""); err != nil {
		return fmt.Errorf("the document is not JSON: %w", err)
	}
	return w.Flush()
}

// printValue prints the decoder's next value under that name.
func printValue(w io.Writer, dec *json.Decoder, name string) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	delim, nested := token.(json.Delim)
	if !nested {
		_, err = fmt.Fprintf(w, "%s\t%v\n", name, token)
		return err
	}
	for i := 0; dec.More(); i++ {
		inner := fmt.Sprint(i)
		if delim == '{' {
			key, err := dec.Token()
			if err != nil {
				return err
			}
			inner = fmt.Sprint(key)
		}
		if name != "" {
			inner = name + "." + inner
		}
		if err := printValue(w, dec, inner); err != nil {
			return err
		}
	}
	_, err = dec.Token() // the closing one
	return err
}
