package store

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// answered is an error as the SDK makes it of an answer. Without a code it is of an answer
// without a body, for which the SDK makes one up.
func answered(status int, code string) error {
	api := &smithy.GenericAPIError{Code: code, Message: "in the server's words"}
	if code == "" {
		api.Message = http.StatusText(status)
		api.Code = strings.ReplaceAll(api.Message, " ", "")
	}
	return &smithy.OperationError{Err: &awshttp.ResponseError{ResponseError: &smithyhttp.ResponseError{
		Response: &smithyhttp.Response{Response: &http.Response{StatusCode: status}}, Err: api}}}
}

func TestWhatAnAnswerMeans(t *testing.T) {
	put := request{op: "put", counted: OpPut, conditional: true}
	replace := request{op: "replace", counted: OpPut, conditional: true}
	get := request{op: "get", counted: OpGet}
	broken := errors.New("connection reset by peer")
	for _, c := range []struct {
		name  string
		r     request
		err   error
		sent  bool
		kind  error
		again bool
		load  load
	}{
		{"done", put, nil, true, nil, false, loadFine},
		{"put: it exists", put, answered(412, "PreconditionFailed"), true, ErrExists, false, loadFine},
		{"put: it exists, without a body", put, answered(412, ""), true, ErrExists, false, loadFine},
		{"replace: changed", replace, answered(412, "PreconditionFailed"), true, ErrChanged, false, loadFine},
		{"replace: gone", replace, answered(404, "NoSuchKey"), true, ErrChanged, false, loadFine},
		{"replace: some other 404", replace, answered(404, "XAdminUserNotFound"), true, ErrDenied, false, loadUnknown},
		{"replace: a 404 that nobody knows", replace, answered(404, "NoSuchTenant"), true, ErrDenied, false, loadUnknown},
		{"get: a 404 that nobody knows", get, answered(404, "NoSuchTenant"), true, ErrDenied, false, loadUnknown},
		{"put: a 409 that nobody knows", put, answered(409, "ExistingObjectIsDirectory"), true, ErrDenied, false, loadUnknown},
		{"replace: no bucket", replace, answered(404, "NoSuchBucket"), true, ErrDenied, false, loadUnknown},
		{"put: somebody else's is under way", put, answered(409, "ConditionalRequestConflict"), true, ErrUnavailable, true, loadFine},
		{"put: S3 throttles", put, answered(503, "SlowDown"), true, ErrUnavailable, true, loadTooMuch},
		{"put: a load balancer says 503", put, answered(503, ""), true, ErrUnknownOutcome, false, loadTooMuch},
		{"put: a load balancer says 502", put, answered(502, ""), true, ErrUnknownOutcome, false, loadUnknown},
		{"put: the server failed", put, answered(500, "InternalError"), true, ErrUnknownOutcome, false, loadUnknown},
		{"put: the body came too slowly", put, answered(400, "RequestTimeout"), true, ErrUnavailable, true, loadUnknown},
		{"put: the clock is off", put, answered(403, "RequestTimeTooSkewed"), true, ErrUnavailable, true, loadUnknown},
		{"put: no conditions there", put, answered(501, "NotImplemented"), true, ErrNoConditionalWrites, false, loadUnknown},
		{"put: forbidden", put, answered(403, "AccessDenied"), true, ErrDenied, false, loadUnknown},
		{"put: another region", put, answered(301, "PermanentRedirect"), true, ErrDenied, false, loadUnknown},
		{"put: the connection broke", put, broken, true, ErrUnknownOutcome, false, loadUnknown},
		{"put: there was no connection", put, broken, false, ErrUnavailable, true, loadUnknown},
		{"get: not there", get, answered(404, "NoSuchKey"), true, ErrNotFound, false, loadFine},
		{"get: some other 404", get, answered(404, "XAdminUserNotFound"), true, ErrDenied, false, loadUnknown},
		{"get: the connection broke", get, broken, true, ErrUnavailable, true, loadUnknown},
		{"get: a load balancer says 503", get, answered(503, ""), true, ErrUnavailable, true, loadTooMuch},
		{"get: 429", get, answered(429, ""), true, ErrUnavailable, true, loadTooMuch},
	} {
		v := judge(c.r, c.err, c.sent)
		if v.kind != c.kind || v.again != c.again || v.load != c.load {
			t.Errorf("%s: %v, again %v, load %v; must be %v, %v, %v", c.name, v.kind, v.again, v.load, c.kind, c.again, c.load)
		}
	}
}

// An NFS client that repeats a link whose answer was lost is told that the name exists: it
// does, and it is ours.
func TestLinkThatWasMadeAlready(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"ours", "theirs"} {
		if err := os.WriteFile(filepath.Join(dir, name), fmt.Append(nil, i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := linkNew(filepath.Join(dir, "ours"), filepath.Join(dir, "o")); err != nil {
			t.Errorf("ours: %v", err)
		}
	}
	if _, err := linkNew(filepath.Join(dir, "theirs"), filepath.Join(dir, "o")); !errors.Is(err, os.ErrExist) {
		t.Errorf("theirs: %v", err)
	}
}
