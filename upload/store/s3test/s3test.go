// Package s3test starts a real S3 server for tests: tools/s3dev, on a free port and a
// directory of its own.
package s3test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload/store"
)

// Bucket exists from the start.
const Bucket = "walsidecar"

// What the server knows its only user by.
const (
	AccessKeyID     = "s3dev"
	SecretAccessKey = "s3dev-secret"
)

// Server is a running one; it ends with the test.
type Server struct {
	// Endpoint is http://127.0.0.1:port.
	Endpoint string
	// Dir has the objects as files, below Bucket: a test may damage them there.
	Dir string
}

// Start starts a server. The test is skipped, with the reason, when there is no binary: with
// -short where none is cached (a cold build takes minutes), else where none can be built.
func Start(t testing.TB) *Server {
	t.Helper()
	binary := Binary(t)
	dir := t.TempDir()
	for try := range 5 {
		s, err := start(t, binary, dir)
		if err == nil {
			return s
		}
		t.Logf("s3dev, try %d: %v", try, err)
	}
	t.Fatal("s3dev does not start")
	return nil
}

// Binary gives the path of the s3dev binary, built and cached, or skips the test.
func Binary(t testing.TB) string {
	t.Helper()
	build, err := buildScript()
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	if testing.Short() {
		args = append(args, "--cached")
	}
	var errors strings.Builder
	command := exec.Command(build, args...)
	command.Stderr = &errors
	out, err := command.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(errors.String()), "\n")
		t.Skipf("SKIPPED: no S3 server: %v: %s", err, lines[len(lines)-1])
	}
	return strings.TrimSpace(string(out))
}

// buildScript finds tools/s3dev/build from anywhere in the tree.
func buildScript() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, "tools", "s3dev", "build")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no tools/s3dev/build above the working directory")
		}
	}
}

func start(t testing.TB, binary, dir string) (*Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free now
	if err != nil {
		return nil, err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	health := fmt.Sprintf("/health-%016x", rand.Uint64()) // so that nobody else's server answers for ours
	command := exec.Command(binary, "--dir", dir, "--port", fmt.Sprint(port), "--bucket", Bucket,
		"--access", AccessKeyID, "--secret", SecretAccessKey, "--until-eof", "--health", health)
	alive, err := command.StdinPipe() // it ends when this process does, however
	if err != nil {
		return nil, err
	}
	var output strings.Builder
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	s := &Server{Endpoint: fmt.Sprintf("http://127.0.0.1:%d", port), Dir: dir}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		select {
		case err := <-ended:
			return nil, fmt.Errorf("it ended: %w: %s", err, output.String())
		case <-ctx.Done():
			_ = command.Process.Kill()
			return nil, fmt.Errorf("not ready: %w: %s", ctx.Err(), output.String())
		case <-time.After(10 * time.Millisecond):
		}
		response, err := http.Get(s.Endpoint + health)
		if err != nil {
			continue
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			break
		}
	}
	t.Cleanup(func() {
		alive.Close()
		_ = command.Process.Kill()
		if err := <-ended; err != nil {
			t.Logf("s3dev: %v", err) // "signal: killed"
		}
	})
	return s, nil
}

// URL names a prefix of the bucket for store.Open.
func (s *Server) URL(prefix string) string { return URLAt(s.Endpoint, prefix) }

// URLAt is URL through another endpoint, such as a proxy before the server.
func URLAt(endpoint, prefix string) string {
	return fmt.Sprintf("s3://%s/%s?endpoint=%s&region=us-east-1&path_style=true", Bucket, prefix, endpoint)
}

// Options has the credentials of the server.
func Options() store.Options {
	return store.Options{AccessKeyID: AccessKeyID, SecretAccessKey: SecretAccessKey}
}

// Env has the credentials for the environment of a process, such as a walsidecar.
func Env() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + AccessKeyID, "AWS_SECRET_ACCESS_KEY=" + SecretAccessKey, "AWS_EC2_METADATA_DISABLED=true"}
}
