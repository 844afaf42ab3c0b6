// Command s3dev is a small S3 server on one directory, for tests and demos: the Versity
// gateway, embedded. It is a module of its own so that none of its dependencies reach
// walsidecar.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	dir := flag.String("dir", "", "where the objects are kept; created if missing, used by one server at a time")
	port := flag.Int("port", 7070, "TCP port on 127.0.0.1")
	bucket := flag.String("bucket", "walsidecar", "a bucket to have from the start")
	access := flag.String("access", "s3dev", "access key id")
	secret := flag.String("secret", "s3dev-secret", "secret access key")
	health := flag.String("health", "/health", "path that answers 200 without credentials")
	untilEOF := flag.Bool("until-eof", false, "stop when standard input ends: with the process that started it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *untilEOF {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
	}
	if err := run(ctx, *dir, *bucket, &embedgw.Config{
		RootUserAccess: *access, RootUserSecret: *secret, Region: "us-east-1",
		Ports: []string{fmt.Sprintf("127.0.0.1:%d", *port)}, MaxConnections: 1024, MaxRequests: 512,
		MultipartMaxParts: 10000, KeepAlive: true, Quiet: true, HealthPath: *health,
	}); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "s3dev:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, bucket string, cfg *embedgw.Config) error {
	if dir == "" || flag.NArg() > 0 {
		return fmt.Errorf("usage: s3dev --dir DIR [--port N] [--bucket NAME]")
	}
	// Absolute, because the gateway makes its root the working directory.
	root, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(root, bucket), 0o755); err != nil {
		return err
	}
	var attributes meta.MetadataStorer = meta.XattrMeta{}
	opts := posix.PosixOpts{CopyObjectThreshold: 5 << 30}
	if err := (meta.XattrMeta{}).Test(root); err != nil {
		// A filesystem without extended attributes: they go into files beside the root.
		opts.SideCarDir = filepath.Join(filepath.Dir(root), "."+filepath.Base(root)+".attributes")
		if err := os.MkdirAll(opts.SideCarDir, 0o755); err != nil {
			return err
		}
		if attributes, err = meta.NewSideCar(opts.SideCarDir); err != nil {
			return err
		}
	}
	backend, err := posix.New(root, attributes, opts)
	if err != nil {
		return err
	}
	return embedgw.RunVersityGW(ctx, backend, cfg)
}
