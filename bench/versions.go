package main

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
)

// peerModules are the libraries, and NATS, by the modules that they come from.
var peerModules = map[string]string{
	"go.etcd.io/etcd/server/v3": "etcd", "github.com/hashicorp/raft-wal": "raft-wal", "github.com/tidwall/wal": "tidwall/wal",
	"github.com/cockroachdb/pebble/v2": "Pebble", "github.com/nats-io/nats-server/v2": "NATS",
}

var versionNumber = regexp.MustCompile(`[0-9]+(\.[0-9]+)+`)

// versions are those of the peers that are here, by name.
func versions(programs string) map[string]string {
	found := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if name := peerModules[d.Path]; name != "" {
				found[name] = versionNumber.FindString(d.Version)
			}
		}
	}
	for name, command := range map[string][]string{
		"Redis": {"redis-server", "--version"}, "PostgreSQL": {"psql", "--version"}, "fio": {"fio", "--version"}, "RocksDB": {filepath.Join(programs, "rocksload"), "--version"},
	} {
		if out, err := exec.Command(command[0], command[1:]...).Output(); err == nil {
			found[name] = versionNumber.FindString(string(out))
		}
	}
	return found
}
