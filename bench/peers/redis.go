package peers

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/walsidecar/walsidecar/bench/drive"
)

// redisServer is a Redis stream with appendfsync always, XADD over a Unix socket, one
// connection for each producer. MAXLEN keeps the stream short.
type redisServer struct {
	server *exec.Cmd
	conns  []*redisConn
}

type redisConn struct {
	conn   net.Conn
	out    *bufio.Writer
	in     *bufio.Reader
	header string // of the command, up to the record
}

const (
	redisKeeps  = "65536" // records
	redisBuffer = 64 << 10
)

func (r *redisServer) Open(ctx context.Context, s drive.Setup) error {
	socket := filepath.Join(s.Scratch, "redis.sock")
	r.server = exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--dir", s.Dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0", "--daemonize", "no",
		"--maxclients", "1000", "--loglevel", "warning")
	r.server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r.server.Stderr = os.Stderr
	if err := r.server.Start(); err != nil {
		return err
	}
	for range s.Producers {
		conn, err := dialUntil(ctx, socket)
		if err != nil {
			return err
		}
		r.conns = append(r.conns, &redisConn{
			conn: conn, out: bufio.NewWriterSize(conn, redisBuffer), in: bufio.NewReaderSize(conn, redisBuffer),
			header: "*8\r\n" + bulk("XADD") + bulk("s") + bulk("MAXLEN") + bulk("~") + bulk(redisKeeps) + bulk("*") + bulk("d") + "$" + strconv.Itoa(s.Size) + "\r\n",
		})
	}
	return nil
}

// bulk is one argument of a command.
func bulk(arg string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(arg), arg) }

func (c *redisConn) send(record []byte) {
	_, _ = c.out.WriteString(c.header) // the writer keeps the error for Flush
	_, _ = c.out.Write(record)
	_, _ = c.out.WriteString("\r\n")
}

// receive reads one answer: the id of the record, a bulk string.
func (c *redisConn) receive() error {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if line[0] != '$' {
		return fmt.Errorf("redis answers %q", line)
	}
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil {
		return err
	}
	_, err = c.in.Discard(n + len("\r\n"))
	return err
}

func (r *redisServer) Append(producer int, record []byte) error {
	c := r.conns[producer]
	c.send(record)
	if err := c.out.Flush(); err != nil {
		return err
	}
	return c.receive()
}

func (r *redisServer) Submit(record []byte) error {
	r.conns[0].send(record)
	return nil
}

// Wait sends what is buffered before it has to wait.
func (r *redisServer) Wait() error {
	c := r.conns[0]
	if c.in.Buffered() == 0 {
		if err := c.out.Flush(); err != nil {
			return err
		}
	}
	return c.receive()
}

func (r *redisServer) Close() error {
	for _, c := range r.conns {
		c.conn.Close()
	}
	if r.server.Process != nil {
		_ = r.server.Process.Kill() // nothing of it is kept
		_ = r.server.Wait()
	}
	return nil
}
