package session_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/wire"
)

// notForClients are sentinels that no answer to a client can come from: the
// commands that meet them say more than a code.
var notForClients = map[string]string{
	"ringwal.ErrEpoch":             "start",
	"ringwal.ErrTooSmall":          "format and start",
	"ringwal.ErrTailChanged":       "start: recovers again",
	"ringwal.ErrTooManyBoundaries": "start",
	"ringwal.ErrWait":              "the commit loop waits",
	"ringwal.ErrTrim":              "the commit loop",
}

// Every exported sentinel of the rooms below is in the one table, or is named
// above.
func TestEverySentinelHasACode(t *testing.T) {
	table, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range []string{"stream", "ringwal", "reader"} {
		for _, name := range sentinels(t, filepath.Join("..", room)) {
			name = room + "." + name
			inTable := strings.Contains(string(table), "{"+name+",")
			if _, exempt := notForClients[name]; inTable == exempt {
				t.Errorf("%s: in the table %v, exempt %v", name, inTable, exempt)
			}
		}
	}
}

// sentinels returns the exported Err variables of a package.
func sentinels(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", dir, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				for _, n := range spec.(*ast.ValueSpec).Names {
					if strings.HasPrefix(n.Name, "Err") {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	return names
}

func TestCodeOf(t *testing.T) {
	for want, err := range map[wire.Code]error{
		wire.CodeOK:                 nil,
		wire.CodeInternal:           errors.New("something else"),
		wire.CodePreconditionFailed: fmt.Errorf("append: %w", &stream.Refusal{Err: stream.ErrOffsetMismatch}),
		wire.CodeDraining:           fmt.Errorf("node: %w", &wire.Error{Code: wire.CodeDraining}),
		wire.CodeDamaged:            &ringwal.DamageError{From: 1, To: 2},
		wire.CodeStoreUnavailable:   fmt.Errorf("%w: %w", reader.ErrStore, context.DeadlineExceeded),
		wire.CodeDataLost:           fmt.Errorf("stream 3: %w", reader.ErrLost),
	} {
		if got := session.CodeOf(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// A refusal keeps what it knows on its way to the client.
func TestFillError(t *testing.T) {
	e := wire.Error{Code: wire.CodeInternal, Known: wire.FlagOffset, Offset: 9, Name: "from before"}
	session.FillError(&e, &stream.Refusal{Err: stream.ErrOffsetMismatch, Entry: 3, Actual: 17, Logged: true, Position: 4096})
	if e.Code != wire.CodePreconditionFailed || e.Known != wire.FlagEntry|wire.FlagActual|wire.FlagPosition || e.Entry != 3 ||
		e.Actual != 17 || !e.Logged || e.Position != 4096 || e.Name != "" || !strings.Contains(e.Message, "next offset") {
		t.Errorf("%+v", e)
	}
	session.FillError(&e, fmt.Errorf("outer: %w", &wire.Error{Code: wire.CodeLogFull, Name: "orders", Message: "full"}))
	if e.Code != wire.CodeLogFull || e.Name != "orders" || e.Message != "full" || e.Logged {
		t.Errorf("%+v", e)
	}
}
