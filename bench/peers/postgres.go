package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/walsidecar/walsidecar/bench/drive"
)

// postgres is PostgreSQL: a transaction with one INSERT for each record, over a Unix
// socket, a connection for each producer. Pipelined records are batches: one transaction
// of many INSERTs, in pgx's pipeline mode, behind the driver's group committer.
type postgres struct {
	server *exec.Cmd
	conns  []*pgx.Conn
}

const (
	postgresUser   = "postgres"
	postgresInsert = "insert into log(b) values ($1)"
	// postgresSegments of 16 MiB of its log are written before the load, so that a cell
	// meets a log that is recycled, as in use.
	postgresSegments = 24
)

// postgresBinaries is the directory of the newest installed server.
func postgresBinaries() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is good
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[len(found)-1])
}

func missingPostgres(string) string {
	switch {
	case postgresBinaries() == "":
		return "PostgreSQL is not installed (apt-get install postgresql)"
	case os.Geteuid() != 0:
		return "its server refuses to run as root, and only root can start it as its own user"
	}
	if _, err := user.Lookup(postgresUser); err != nil {
		return err.Error()
	}
	return ""
}

func (p *postgres) Open(ctx context.Context, s drive.Setup) error {
	account, err := user.Lookup(postgresUser)
	if err != nil {
		return err
	}
	uid, _ := strconv.Atoi(account.Uid) // numbers on Linux
	gid, _ := strconv.Atoi(account.Gid)
	data, socket := filepath.Join(s.Dir, "pg"), filepath.Join(s.Scratch, "pg")
	for _, dir := range []string{data, socket} {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, uid, gid)); err != nil {
			return err
		}
	}
	if err := os.Chmod(s.Scratch, 0o755); err != nil {
		return err
	}
	as := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, Pdeathsig: syscall.SIGKILL}
	initdb := exec.Command(filepath.Join(postgresBinaries(), "initdb"), "-D", data, "-A", "trust", "-U", postgresUser, "--no-sync")
	initdb.SysProcAttr, initdb.Dir = as, "/"
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	p.server = exec.Command(filepath.Join(postgresBinaries(), "postgres"), "-D", data, "-k", socket, "-h", "",
		"-c", "synchronous_commit=on", "-c", "fsync=on", "-c", "wal_sync_method=fdatasync", "-c", "max_connections=300",
		"-c", "shared_buffers=512MB", "-c", "wal_buffers=64MB", "-c", "max_wal_size=1GB", "-c", "min_wal_size=512MB", "-c", "checkpoint_timeout=1h",
		"-c", "autovacuum=off", "-c", "log_min_messages=fatal", "-c", "jit=off")
	p.server.SysProcAttr, p.server.Dir = as, "/"
	if err := p.server.Start(); err != nil {
		return err
	}
	for range s.Producers {
		conn, err := connectPostgres(ctx, socket)
		if err != nil {
			return err
		}
		p.conns = append(p.conns, conn)
	}
	return p.prepare(ctx)
}

func connectPostgres(ctx context.Context, socket string) (conn *pgx.Conn, err error) {
	return conn, until(ctx, func() (err error) {
		conn, err = pgx.Connect(ctx, "host="+socket+" user="+postgresUser+" dbname=postgres")
		return err
	})
}

// prepare makes the table, and a log that is recycled.
func (p *postgres) prepare(ctx context.Context) error {
	statements := []string{"create table log(id bigserial, b bytea)", "alter table log alter column b set storage external"}
	for range postgresSegments {
		statements = append(statements, "insert into log(b) values ('x')", "select pg_switch_wal()")
	}
	for _, statement := range append(statements, "truncate log", "checkpoint") {
		if _, err := p.conns[0].Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

func (p *postgres) Append(producer int, record []byte) error {
	_, err := p.conns[producer].Exec(context.Background(), postgresInsert, record)
	return err
}

func (p *postgres) AppendBatch(records [][]byte) error {
	var b pgx.Batch
	for _, record := range records {
		b.Queue(postgresInsert, record)
	}
	return p.conns[0].SendBatch(context.Background(), &b).Close()
}

func (p *postgres) Close() error {
	for _, c := range p.conns {
		_ = c.Close(context.Background()) // the server ends next
	}
	if p.server == nil || p.server.Process == nil {
		return nil
	}
	// At once: nothing of it is kept, and its backends must be gone before the unmount.
	_ = p.server.Process.Signal(syscall.SIGQUIT)
	_ = p.server.Wait() // it says that it was told to
	return nil
}
