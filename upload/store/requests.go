package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

// request is one operation on a bucket: one or more attempts.
type request struct {
	op, key string
	counted Operation
	class   Class
	bytes   int64 // of the larger body
	// conditional: may be tried again only if it is known not to have been carried out.
	conditional bool
}

// Backoff: full jitter between 0 and backoffFrom × 2^attempt, at most backoffMost.
const (
	backoffFrom = 100 * time.Millisecond
	backoffMost = 20 * time.Second
)

// do carries out one operation with try, which makes one request.
func (b *bucket) do(ctx context.Context, r request, try func(context.Context) error) error {
	if r.counted != OpList && r.counted != OpDelete {
		if err := CheckKey(r.key); err != nil {
			return &Error{Op: r.op, Store: b.String(), Key: r.key, Kind: ErrDenied, Cause: err}
		}
	}
	r.class = classOf(ctx, r.class)
	began := time.Now()
	for n := 1; ; n++ {
		v := b.attempt(ctx, r, try)
		if errors.Is(v.kind, ErrNotFound) && v.code != "NoSuchKey" {
			v = b.settleNotFound(ctx, r, v)
		}
		if v.kind == nil {
			b.counters.lastTrouble.Store(nil)
			return nil
		}
		err := &Error{Op: r.op, Store: b.String(), Key: r.key, Kind: v.kind, Code: v.code, Attempts: n, Cause: v.cause}
		if failed(err.Kind) {
			b.counters.lastTrouble.Store(&Trouble{At: time.Now(), Error: err})
		}
		if v.credentials && b.credentials.refuse(ctx) {
			v.again = true
		}
		pause := time.Duration(rand.Int64N(int64(min(backoffMost, backoffFrom<<min(n-1, 16)))))
		if !v.again || time.Since(began)+pause > b.options.RetryFor || !sleep(ctx, pause) {
			if failed(err.Kind) {
				b.counters.Failures[r.class].Add(1)
			}
			return err
		}
		b.counters.Retries[r.class].Add(1)
	}
}

func failed(kind error) bool {
	return errors.Is(kind, ErrUnavailable) || errors.Is(kind, ErrDenied) || errors.Is(kind, ErrUnknownOutcome)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempt makes one request within the class's budget.
func (b *bucket) attempt(ctx context.Context, r request, try func(context.Context) error) verdict {
	// Asked for before the request, so that their absence is never taken for an answer.
	if _, err := b.credentials.Retrieve(ctx); err != nil {
		if ctx.Err() != nil {
			return verdict{kind: ErrUnavailable, cause: context.Cause(ctx)}
		}
		return verdict{kind: ErrDenied, code: "NoCredentials", cause: fmt.Errorf("no credentials: %w", err)}
	}
	limit := b.budgets[r.class]
	patience, err := limit.acquire(ctx)
	if err != nil {
		return verdict{kind: ErrUnavailable, cause: err}
	}
	b.counters.Requests[r.counted][r.class].Add(1)
	a := &attempt{counters: b.counters, class: r.class}
	began := time.Now()
	requestCtx, end := a.start(ctx, r.bytes, b.options.AttemptTimeout, patience)
	err = try(requestCtx)
	cause := context.Cause(requestCtx)
	if err != nil && cause != nil && status(err) == 0 {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	end()
	v := judge(r, err, a.sent.Load())
	if err != nil && (errors.Is(cause, errTooSlow) || errors.Is(cause, errStalled)) {
		v.load = loadTooSlow
	}
	if v.load == loadTooMuch {
		b.counters.Throttles[r.class].Add(1)
	}
	limit.release(began, time.Now(), v.load)
	if ctx.Err() != nil {
		v.again = false
	}
	return v
}

// settleNotFound asks what a 404 without a name was about (an answer to HEAD has none): the
// key, or the bucket, or even the credentials. A list is answered in words.
func (b *bucket) settleNotFound(ctx context.Context, r request, notFound verdict) verdict {
	v := b.attempt(ctx, request{op: "list", counted: OpList, class: r.class}, func(ctx context.Context) error {
		_, err := b.client.Load().ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &b.Bucket, Prefix: b.path(r.key), MaxKeys: aws.Int32(1)})
		return err
	})
	if v.kind == nil {
		return notFound
	}
	return v
}

// verdict is what one attempt means.
type verdict struct {
	kind  error // nil: done
	code  string
	cause error
	again bool // safe and sensible to repeat
	// credentials were refused: to be repeated if there are others.
	credentials bool
	load        load
}

// permanentError is of an answer that makes no sense and would come again.
type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }

// kindError is an answer that has a sentinel of its own.
type kindError struct{ kind, cause error }

func (e *kindError) Error() string { return e.cause.Error() }

// keyError is the answer about one key of many.
type keyError struct{ code, key, message string }

func (e *keyError) Error() string { return fmt.Sprintf("%s: %s: %s", e.key, e.code, e.message) }

// status is the HTTP status of a failed request, 0 without an answer.
func status(err error) int {
	var response *awshttp.ResponseError
	if errors.As(err, &response) {
		return response.HTTPStatusCode()
	}
	return 0
}

// judge says what the result of an attempt means. sent: the server may have seen it.
func judge(r request, err error, sent bool) verdict {
	if err == nil {
		return verdict{load: loadFine}
	}
	v := verdict{cause: err}
	var kind *kindError
	var permanent *permanentError
	var key *keyError
	var api smithy.APIError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &certificate):
		return verdict{kind: ErrDenied, cause: err}
	case errors.As(err, &kind):
		return verdict{kind: kind.kind, cause: kind.cause, load: loadFine}
	case errors.As(err, &permanent):
		return verdict{kind: ErrUnavailable, cause: permanent.err}
	case errors.As(err, &key):
		v.code = key.code
	case errors.As(err, &api):
		v.code = api.ErrorCode()
		v.cause = fmt.Errorf("%s: %s (status %d)", v.code, api.ErrorMessage(), status(err))
	}
	if api == nil || !madeUp(api, status(err)) {
		v.judgeCode()
	}
	if v.kind == nil {
		v.judgeStatus(r, status(err))
	}
	if v.kind != nil {
		return v
	}
	// No answer, or one that says little.
	v.kind, v.again = ErrUnavailable, true
	if r.conditional && sent {
		v.kind, v.again = ErrUnknownOutcome, false
	}
	if status(err) == 503 || status(err) == 429 {
		v.load = loadTooMuch
	}
	return v
}

// madeUp: the SDK made a code of the status, because the answer had none. Then it may be of
// something between us and the store, which does not know what the store did.
func madeUp(api smithy.APIError, status int) bool {
	text := http.StatusText(status)
	return api.ErrorMessage() == text && api.ErrorCode() == strings.ReplaceAll(text, " ", "")
}

// judgeCode sets the kind where the name that the server gave it settles it.
func (v *verdict) judgeCode() {
	switch v.code {
	case "SlowDown", "ServiceUnavailable", "Busy", "ThrottlingException", "Throttling", "RequestLimitExceeded",
		"TooManyRequests", "TooManyRequestsException", "RequestThrottled", "BandwidthLimitExceeded":
		v.kind, v.again, v.load = ErrUnavailable, true, loadTooMuch
	case "ConditionalRequestConflict", "OperationAborted":
		// Somebody else's write of this key is under way: nothing was done.
		v.kind, v.again, v.load = ErrUnavailable, true, loadFine
	case "RequestTimeout", "RequestTimeTooSkewed", "BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody":
		// It arrived late or broken, or was signed by a wrong clock: the SDK signs the next
		// one by the server's.
		v.kind, v.again = ErrUnavailable, true
	case "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch",
		"AccessDenied", "XAdminUserNotFound":
		v.kind, v.credentials = ErrDenied, true
	case "NoSuchBucket":
		v.kind = ErrDenied
	}
}

// judgeStatus sets the kind where the status settles it.
func (v *verdict) judgeStatus(r request, status int) {
	switch {
	case status == 412 && r.op == "put":
		v.kind, v.cause, v.load = ErrExists, nil, loadFine
	case status == 412, status == 404 && r.op == "replace" && v.code == "NoSuchKey":
		v.kind, v.cause, v.load = ErrChanged, nil, loadFine
	case status == 404 && (r.counted == OpGet || r.counted == OpHead) && (v.code == "NoSuchKey" || v.code == "NotFound"):
		v.kind, v.cause, v.load = ErrNotFound, nil, loadFine
	case status == 401, status == 403:
		v.kind, v.credentials = ErrDenied, true
	case status >= 300 && status < 500 && status != 408 && status != 429:
		v.kind = ErrDenied
	case status == 501 && r.conditional:
		v.kind = ErrNoConditionalWrites
	}
}
