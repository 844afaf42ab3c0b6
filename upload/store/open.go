package store

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Open opens a store: "s3://bucket/prefix" with the parameters of ParseS3, or the path of a
// directory. It makes no request to a bucket; use Probe for the first look.
func Open(ctx context.Context, where string, o Options) (Store, error) {
	if o.RetryFor == 0 {
		o.RetryFor = RetryFor
	}
	if o.Concurrency == 0 {
		o.Concurrency = MaxConcurrency
	}
	if o.AttemptTimeout == 0 {
		o.AttemptTimeout = AttemptTimeout
	}
	if o.Counters == nil {
		o.Counters = &Counters{}
	}
	if strings.HasPrefix(where, "s3://") {
		location, err := ParseS3(where)
		if err != nil {
			return nil, err
		}
		return openS3(ctx, location, o)
	}
	if where == "" || strings.Contains(where, "://") {
		return nil, urlError(where, "it is s3://bucket/prefix or the path of a directory")
	}
	return openDirectory(where, o)
}

// S3 is what an s3:// URL says.
type S3 struct {
	Bucket, Prefix string // the prefix without slashes at its ends; may be empty
	Endpoint       string // of a server that is not AWS: http://host:port or https://host
	Region         string
	PathStyle      bool   // http://host/bucket/key rather than http://bucket.host/key
	Profile        string // of the shared AWS configuration files
	Role           string // ARN of a role to assume with the credentials found
	SSE            string // server-side encryption: AES256, aws:kms, aws:kms:dsse; empty: as the bucket says
	KMSKeyID       string // of the key for aws:kms and aws:kms:dsse; empty: the account's own
}

// String names bucket and prefix.
func (l S3) String() string {
	if l.Prefix == "" {
		return "s3://" + l.Bucket
	}
	return "s3://" + l.Bucket + "/" + l.Prefix
}

var s3Parameters = []string{"endpoint", "path_style", "profile", "region", "role", "sse", "sse_kms_key_id"}

// ParseS3 reads s3://bucket/prefix?endpoint=…&region=…&path_style=true&profile=…&role=…
// &sse=…&sse_kms_key_id=…; every parameter may be left out. ErrURL.
func ParseS3(where string) (S3, error) {
	u, err := url.Parse(where)
	if err != nil {
		return S3{}, urlError(where, "it does not parse")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return S3{}, urlError(where, "its parameters do not parse")
	}
	for name, values := range query {
		if !slices.Contains(s3Parameters, name) {
			return S3{}, urlError(where, fmt.Sprintf("it has no parameter %q; there are %s", name, strings.Join(s3Parameters, ", ")))
		}
		if len(values) != 1 || values[0] == "" {
			return S3{}, urlError(where, fmt.Sprintf("parameter %s needs one value", name))
		}
	}
	l := S3{
		Bucket: u.Host, Prefix: strings.Trim(u.Path, "/"), Endpoint: query.Get("endpoint"), Region: query.Get("region"),
		Profile: query.Get("profile"), Role: query.Get("role"), SSE: query.Get("sse"), KMSKeyID: query.Get("sse_kms_key_id"),
	}
	if query.Has("path_style") {
		if l.PathStyle, err = strconv.ParseBool(query.Get("path_style")); err != nil {
			return S3{}, urlError(where, "path_style is true or false")
		}
	}
	return l, l.check(where, u)
}

func (l S3) check(where string, u *url.URL) error {
	if u.User != nil {
		return urlError(where, "credentials do not belong into it: use the environment, a profile or a role")
	}
	if l.Bucket == "" || u.Port() != "" || u.Fragment != "" {
		return urlError(where, "it is s3://bucket/prefix?parameters")
	}
	if l.Prefix != "" {
		if err := CheckKey(l.Prefix); err != nil || len(l.Prefix) > maxPrefixBytes {
			return urlError(where, fmt.Sprintf("its prefix is not what a key may begin with (at most %d bytes of A-Z a-z 0-9 - _ . = /)", maxPrefixBytes))
		}
	}
	if l.Endpoint != "" {
		e, err := url.Parse(l.Endpoint)
		if err != nil || (e.Scheme != "http" && e.Scheme != "https") || e.Host == "" || e.User != nil || e.RawQuery != "" {
			return urlError(where, "endpoint is http://host:port or https://host")
		}
	}
	if l.SSE != "" && !slices.Contains([]string{"AES256", "aws:kms", "aws:kms:dsse"}, l.SSE) {
		return urlError(where, "sse is AES256, aws:kms or aws:kms:dsse")
	}
	if l.KMSKeyID != "" && !strings.HasPrefix(l.SSE, "aws:kms") {
		return urlError(where, "sse_kms_key_id needs sse=aws:kms or sse=aws:kms:dsse")
	}
	return nil
}

// maxPrefixBytes and MaxKeyBytes make the 1,024 bytes that S3 allows.
const maxPrefixBytes = 1024 - MaxKeyBytes - 1

func urlError(where, why string) error {
	return &Error{Op: "open", Store: withoutSecrets(where), Kind: ErrURL, Cause: fmt.Errorf("%s", why)}
}

// withoutSecrets cuts what may be a password before a URL is shown.
func withoutSecrets(where string) string {
	if scheme, rest, ok := strings.Cut(where, "://"); ok {
		if at := strings.LastIndex(rest, "@"); at >= 0 {
			return scheme + "://…@" + rest[at+1:]
		}
	}
	return where
}
