package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/fence"
)

// Whoever has the file open is named, however the path is written.
func TestWhoHasTheFileOpenIsNamed(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	f, err := os.Create("wal")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Symlink("wal", "link"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"wal", "./wal", "link", filepath.Join(dir, "wal")} {
		for _, found := range Examine(path, Options{Fence: fence.WishAuto}).Findings {
			if found.Check == "in_use" && (found.Level != Warning || !strings.Contains(found.Found, "open in process")) {
				t.Errorf("%s: %+v", path, found)
			}
		}
	}
}
