package store

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"
)

// bucket is a store in an S3-compatible bucket. The SDK signs and parses; what is tried
// again, when, and how much at once is decided in requests.go.
type bucket struct {
	S3
	client      atomic.Pointer[s3.Client]
	transport   *http.Transport
	credentials *keeper
	counters    *Counters
	options     Options
	budgets     [classes]*budget
}

func openS3(ctx context.Context, l S3, o Options) (*bucket, error) {
	cfg, err := loadConfig(ctx, l, o)
	if err != nil {
		return nil, &Error{Op: "open", Store: l.String(), Kind: ErrDenied, Cause: err}
	}
	if cfg.Region == "" {
		if l.Endpoint == "" && cfg.BaseEndpoint == nil {
			return nil, &Error{Op: "open", Store: l.String(), Kind: ErrURL,
				Cause: errors.New("no region: add ?region=… or set AWS_REGION")}
		}
		cfg.Region = "us-east-1" // what servers other than AWS call themselves
	}
	b := &bucket{S3: l, counters: o.Counters, options: o, transport: newTransport(int(classes)*o.Concurrency, o.AttemptTimeout)}
	if client, ok := cfg.HTTPClient.(*awshttp.BuildableClient); ok {
		b.transport.TLSClientConfig = client.GetTransport().TLSClientConfig // AWS_CA_BUNDLE
	}
	b.credentials = &keeper{counters: o.Counters, provider: cfg.Credentials, found: time.Now(),
		find: func(ctx context.Context) (aws.CredentialsProvider, error) {
			again, err := loadConfig(ctx, l, o)
			if err != nil {
				return nil, err
			}
			b.connect(cfg) // the SDK's signer would use the old secret of an equal key id
			return again.Credentials, nil
		}}
	b.connect(cfg)
	for c := range b.budgets {
		b.budgets[c] = newBudget(o.Concurrency, &o.Counters.Limit[c])
	}
	return b, nil
}

// connect makes the SDK's client.
func (b *bucket) connect(cfg aws.Config) {
	cfg.Credentials = b.credentials
	b.client.Store(s3.NewFromConfig(cfg, func(s *s3.Options) {
		s.HTTPClient = attempts{b.transport}
		s.Retryer = aws.NopRetryer{}
		s.UsePathStyle = b.PathStyle
		if b.Endpoint != "" {
			s.BaseEndpoint = aws.String(strings.TrimSuffix(b.Endpoint, "/"))
		}
		// Stores other than AWS reject the trailers that the SDK would add on its own.
		s.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		s.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		s.DisableLogOutputChecksumValidationSkipped = true
		s.ContinueHeaderThresholdBytes = -1 // a round trip that saves nothing: bodies are small
	}))
}

// loadConfig is the SDK's own chain: environment, shared files, web identity, container,
// instance; then the role of the URL.
func loadConfig(ctx context.Context, l S3, o Options) (aws.Config, error) {
	load := []func(*config.LoadOptions) error{config.WithLogger(logging.Nop{})}
	if l.Region != "" {
		load = append(load, config.WithRegion(l.Region))
	}
	if l.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(l.Profile))
	}
	if o.AccessKeyID != "" {
		load = append(load, config.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider(o.AccessKeyID, o.SecretAccessKey, o.SessionToken)))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err == nil && l.Role != "" {
		cfg.Credentials = stscreds.NewAssumeRoleProvider(sts.NewFromConfig(cfg), l.Role, func(r *stscreds.AssumeRoleOptions) {
			r.RoleSessionName = "walsidecar"
		})
	}
	return cfg, err
}

func (b *bucket) path(key string) *string {
	if b.Prefix != "" {
		key = b.Prefix + "/" + key
	}
	return &key
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// PutIfAbsent of a bucket.
func (b *bucket) PutIfAbsent(ctx context.Context, key string, body []byte) (Version, error) {
	return b.put(ctx, "put", key, body, func(in *s3.PutObjectInput) { in.IfNoneMatch = aws.String("*") })
}

// PutIfMatch of a bucket.
func (b *bucket) PutIfMatch(ctx context.Context, key string, body []byte, old Version) (Version, error) {
	return b.put(ctx, "replace", key, body, func(in *s3.PutObjectInput) {
		if old == "" {
			in.IfNoneMatch = aws.String("*")
		} else {
			in.IfMatch = aws.String(string(old))
		}
	})
}

func (b *bucket) put(ctx context.Context, op, key string, body []byte, condition func(*s3.PutObjectInput)) (Version, error) {
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], crc32.Checksum(body, castagnoli))
	in := &s3.PutObjectInput{
		Bucket: &b.Bucket, Key: b.path(key), ContentLength: aws.Int64(int64(len(body))),
		ContentType:    aws.String("application/octet-stream"),
		ChecksumCRC32C: aws.String(base64.StdEncoding.EncodeToString(sum[:])),
	}
	if b.SSE != "" {
		in.ServerSideEncryption = types.ServerSideEncryption(b.SSE)
	}
	if b.KMSKeyID != "" {
		in.SSEKMSKeyId = &b.KMSKeyID
	}
	condition(in)
	var v Version
	err := b.do(ctx, request{op: op, key: key, counted: OpPut, class: Upload, bytes: int64(len(body)), conditional: true},
		func(ctx context.Context) error {
			in.Body = bytes.NewReader(body)
			out, err := b.client.Load().PutObject(ctx, in)
			if err != nil {
				return err
			}
			if v = Version(aws.ToString(out.ETag)); v == "" {
				return errNoETag
			}
			return nil
		})
	if err != nil {
		return "", err
	}
	return v, nil
}

var errNoETag = errors.New("the answer has no ETag")

// Get of a bucket.
func (b *bucket) Get(ctx context.Context, key string) (body []byte, v Version, err error) {
	err = b.do(ctx, request{op: "get", key: key, counted: OpGet, class: Read, bytes: wholeObjectBytes}, func(ctx context.Context) error {
		out, err := b.client.Load().GetObject(ctx, &s3.GetObjectInput{Bucket: &b.Bucket, Key: b.path(key)})
		if err != nil {
			return err
		}
		defer out.Body.Close()
		if out.ContentLength == nil || out.ETag == nil {
			return errors.New("the answer has no length or no ETag")
		}
		if *out.ContentLength > maxGetBytes {
			return &permanentError{fmt.Errorf("%d bytes are more than an object has", *out.ContentLength)}
		}
		body, v = make([]byte, *out.ContentLength), Version(*out.ETag)
		_, err = io.ReadFull(out.Body, body)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return body, v, nil
}

const (
	// wholeObjectBytes is what a get of unknown length may take its time for.
	wholeObjectBytes = 64 << 20
	// maxGetBytes keeps a wrong answer from taking all memory.
	maxGetBytes = 1 << 30
)

// GetRange of a bucket.
func (b *bucket) GetRange(ctx context.Context, key string, from int64, dst []byte) error {
	if len(dst) == 0 {
		return nil
	}
	last := from + int64(len(dst)) - 1
	want := fmt.Sprintf("bytes %d-%d/", from, last)
	return b.do(ctx, request{op: "get", key: key, counted: OpGet, class: Read, bytes: int64(len(dst))}, func(ctx context.Context) error {
		out, err := b.client.Load().GetObject(ctx, &s3.GetObjectInput{Bucket: &b.Bucket, Key: b.path(key),
			Range: aws.String(fmt.Sprintf("bytes=%d-%d", from, last))})
		if status(err) == 416 {
			return &kindError{ErrShort, fmt.Errorf("bytes [%d, %d)", from, last+1)}
		}
		if err != nil {
			return err
		}
		defer out.Body.Close()
		got := aws.ToString(out.ContentRange)
		if strings.HasPrefix(got, want) {
			_, err = io.ReadFull(out.Body, dst)
			return err
		}
		if strings.HasPrefix(got, fmt.Sprintf("bytes %d-", from)) && aws.ToInt64(out.ContentLength) < int64(len(dst)) {
			return &kindError{ErrShort, fmt.Errorf("bytes [%d, %d) of %s", from, last+1, got)}
		}
		return &permanentError{fmt.Errorf("asked for %s, the server answered with %q", want, got)}
	})
}

// Head of a bucket.
func (b *bucket) Head(ctx context.Context, key string) (Info, error) {
	info := Info{Key: key}
	err := b.do(ctx, request{op: "head", key: key, counted: OpHead, class: Read}, func(ctx context.Context) error {
		out, err := b.client.Load().HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.Bucket, Key: b.path(key)})
		if err != nil {
			return err
		}
		info.SizeBytes, info.Version = aws.ToInt64(out.ContentLength), Version(aws.ToString(out.ETag))
		info.Modified = aws.ToTime(out.LastModified)
		if out.ContentLength == nil || info.Version == "" {
			return errors.New("the answer has no length or no ETag")
		}
		return nil
	})
	if err != nil {
		return Info{}, err
	}
	return info, nil
}

// pageKeys is the most that S3 lists or deletes with one request.
const pageKeys = 1000

// List of a bucket.
func (b *bucket) List(ctx context.Context, prefix, after string, limit int) ([]Info, error) {
	below := *b.path("")
	var found []Info
	for len(found) < limit {
		in := &s3.ListObjectsV2Input{Bucket: &b.Bucket, Prefix: aws.String(below + prefix),
			MaxKeys: aws.Int32(int32(min(limit-len(found), pageKeys)))}
		if after != "" {
			in.StartAfter = aws.String(below + after)
		}
		var out *s3.ListObjectsV2Output
		err := b.do(ctx, request{op: "list", counted: OpList, class: CleanUp}, func(ctx context.Context) (err error) {
			out, err = b.client.Load().ListObjectsV2(ctx, in)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, object := range out.Contents {
			key := strings.TrimPrefix(aws.ToString(object.Key), below)
			after = max(after, key)
			if validKey(key) { // others are not ours
				found = append(found, Info{Key: key, SizeBytes: aws.ToInt64(object.Size),
					Version: Version(aws.ToString(object.ETag)), Modified: aws.ToTime(object.LastModified)})
			}
		}
		if !aws.ToBool(out.IsTruncated) || len(out.Contents) == 0 {
			break
		}
	}
	return found, nil
}

// Delete of a bucket.
func (b *bucket) Delete(ctx context.Context, keys []string) error {
	for _, key := range keys {
		if err := CheckKey(key); err != nil {
			return &Error{Op: "delete", Store: b.String(), Key: key, Kind: ErrDenied, Cause: err}
		}
	}
	for len(keys) > 0 {
		page := keys[:min(len(keys), pageKeys)]
		keys = keys[len(page):]
		objects := make([]types.ObjectIdentifier, len(page))
		for i, key := range page {
			objects[i].Key = b.path(key)
		}
		in := &s3.DeleteObjectsInput{Bucket: &b.Bucket, Delete: &types.Delete{Objects: objects, Quiet: aws.Bool(true)}}
		err := b.do(ctx, request{op: "delete", counted: OpDelete, class: CleanUp}, func(ctx context.Context) error {
			out, err := b.client.Load().DeleteObjects(ctx, in)
			if err != nil {
				return err
			}
			for _, failed := range out.Errors {
				if code := aws.ToString(failed.Code); code != "NoSuchKey" {
					return &keyError{code: code, key: aws.ToString(failed.Key), message: aws.ToString(failed.Message)}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
