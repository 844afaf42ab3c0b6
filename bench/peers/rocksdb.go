package peers

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/walsidecar/walsidecar/bench/drive"
)

// rocksDB is RocksDB, with a synced Put for each record: bench/programs/rocksload.cc.
type rocksDB struct{ setup drive.Setup }

func (r *rocksDB) Open(_ context.Context, s drive.Setup) error {
	r.setup = s
	return nil
}

func (r *rocksDB) Close() error { return nil }

func (r *rocksDB) LoadCommand() *exec.Cmd {
	return exec.Command(filepath.Join(r.setup.Programs, rocksProgram), filepath.Join(r.setup.Dir, "db"), strconv.Itoa(r.setup.Size), strconv.Itoa(r.setup.Producers))
}
