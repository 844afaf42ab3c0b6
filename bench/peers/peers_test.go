package peers

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/bench/drive"
)

func TestEachPeerIsNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range All {
		if seen[p.Name] {
			t.Errorf("%s twice", p.Name)
		}
		seen[p.Name] = true
		if got, err := Named(p.Name); err != nil || got.Name != p.Name {
			t.Errorf("%s is not found: %v", p.Name, err)
		}
		_, batches := p.Make().(drive.Batcher)
		_, appends := p.Make().(drive.Appender)
		_, program := p.Make().(drive.Program)
		if committed := batches && !appends && !program && p.Kind == Library; committed != strings.HasSuffix(p.Name, "+gc") {
			t.Errorf("%s: behind the group committer: %v", p.Name, committed)
		}
	}
	if _, err := Named("nobody"); err == nil {
		t.Error("nobody is found")
	}
}

func TestWhatIsMissingIsSaidByName(t *testing.T) {
	p, err := Named("rocksdb")
	if err != nil {
		t.Fatal(err)
	}
	if reason := p.Reason(t.TempDir()); !strings.Contains(reason, "rocksload") || !strings.Contains(reason, "librocksdb-dev") {
		t.Errorf("the reason is %q", reason)
	}
}

func TestTrimsKeepTheNewerHalf(t *testing.T) {
	const size = 1 << 20
	kept := uint64(keepBytes / size)
	trim := trimmer{size: size, first: 1}
	if _, due := trim.before(2 * kept); due {
		t.Error("trimmed too early")
	}
	if before, due := trim.before(2*kept + 1); !due || before != kept+1 {
		t.Errorf("trimmed before %d, %v", before, due)
	}
	if _, due := trim.before(2*kept + 2); due {
		t.Error("trimmed twice")
	}
}

// What the libraries and the simple way were given is durable in their files, more than
// one trim of it.
func TestLibrariesKeepWhatTheyAnswer(t *testing.T) {
	record := bytes.Repeat([]byte("record.."), 128)
	for _, name := range []string{"rawgo", "etcd-wal+gc", "raft-wal+gc", "tidwall+gc"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Named(name)
			if err != nil {
				t.Fatal(err)
			}
			system, dir := p.Make(), t.TempDir()
			s := drive.Setup{Dir: dir, StoreBytes: 8 << 20, Cell: drive.Cell{Size: len(record), Producers: 16, InFlight: 1}}
			if err := system.Open(context.Background(), s); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				if err := system.(drive.Batcher).AppendBatch([][]byte{record, record, record}); err != nil {
					t.Fatal(err)
				}
			}
			if !holds(t, dir, record) {
				t.Error("the records are in no file")
			}
			if err := system.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPebbleKeepsWhatItAnswers(t *testing.T) {
	record := bytes.Repeat([]byte("record.."), 16)
	system, dir := &pebbleDB{}, t.TempDir()
	if err := system.Open(t.Context(), drive.Setup{Dir: dir, Cell: drive.Cell{Size: len(record), Producers: 1, InFlight: 4}}); err != nil {
		t.Fatal(err)
	}
	defer system.Close()
	if err := system.Append(0, record); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := system.Submit(record); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		if err := system.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	for n := uint64(1); n <= 5; n++ {
		got, closer, err := system.db.Get(key(n))
		if err != nil || !bytes.Equal(got, record) {
			t.Fatalf("record %d is %q, %v", n, got, err)
		}
		_ = closer.Close()
	}
	if !holds(t, filepath.Join(dir, "db"), record) {
		t.Error("the records are in no file")
	}
}

// holds is whether a file below dir has the record in it.
func holds(t *testing.T, dir string, record []byte) (found bool) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		found = found || bytes.Contains(text, record)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
