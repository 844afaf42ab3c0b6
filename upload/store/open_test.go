package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/upload/store"
)

func TestParseS3(t *testing.T) {
	for where, want := range map[string]store.S3{
		"s3://bucket":           {Bucket: "bucket"},
		"s3://bucket/":          {Bucket: "bucket"},
		"s3://bucket/a/prefix/": {Bucket: "bucket", Prefix: "a/prefix"},
		"s3://b/p?endpoint=http://10.0.0.1:7070&region=eu-central-1&path_style=true": {Bucket: "b", Prefix: "p",
			Endpoint: "http://10.0.0.1:7070", Region: "eu-central-1", PathStyle: true},
		"s3://b?profile=wal&role=arn:aws:iam::1:role/wal&sse=aws:kms&sse_kms_key_id=arn:aws:kms:x:1:key/k": {Bucket: "b",
			Profile: "wal", Role: "arn:aws:iam::1:role/wal", SSE: "aws:kms", KMSKeyID: "arn:aws:kms:x:1:key/k"},
		"s3://b?sse=AES256&path_style=false": {Bucket: "b", SSE: "AES256"},
	} {
		got, err := store.ParseS3(where)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; must be %+v", where, got, err, want)
		}
	}
}

func TestURLsThatAreRefused(t *testing.T) {
	for where, said := range map[string]string{
		"":                                     "path of a directory",
		"http://bucket/prefix":                 "path of a directory",
		"s3://":                                "s3://bucket/prefix",
		"s3:///prefix":                         "s3://bucket/prefix",
		"s3://b/p?endpint=http://x":            `no parameter "endpint"; there are endpoint`,
		"s3://b/p?region=":                     "region needs one value",
		"s3://b/p?region=a&region=b":           "region needs one value",
		"s3://b/p?path_style=perhaps":          "true or false",
		"s3://b/p?endpoint=10.0.0.1:7070":      "http://host:port",
		"s3://b/p?endpoint=http://k:s@x":       "http://host:port",
		"s3://b/p?sse=rot13":                   "AES256",
		"s3://b/p?sse=AES256&sse_kms_key_id=k": "needs sse=aws:kms",
		"s3://b/a b":                           "prefix",
		"s3://b/../p":                          "prefix",
		"s3://key:secret@b/p":                  "credentials do not belong",
	} {
		_, err := store.Open(t.Context(), where, store.Options{})
		if !errors.Is(err, store.ErrURL) || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v; must say %q", where, err, said)
		}
		if err != nil && strings.Contains(err.Error(), "key:secret@") {
			t.Errorf("the error shows a secret: %v", err)
		}
	}
}

func FuzzParseS3(f *testing.F) {
	f.Add("s3://bucket/prefix?endpoint=http://127.0.0.1:7070&region=us-east-1&path_style=true")
	f.Add("s3://b?role=arn:aws:iam::1:role/r&sse=aws:kms")
	f.Add("s3://user:pass@b/..%2f")
	f.Fuzz(func(t *testing.T, where string) {
		l, err := store.ParseS3(where)
		if err != nil {
			return
		}
		again, err := store.ParseS3(l.String())
		if err != nil || again.Bucket != l.Bucket || again.Prefix != l.Prefix {
			t.Errorf("%q names %v, which reads as %v, %v", where, l, again, err)
		}
	})
}
