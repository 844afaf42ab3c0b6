package upload

import (
	"errors"
	"testing"
)

// A store that takes uploads and refuses deletes does not fail uploads.
func TestTroubleWithDeletesIsNoneOfUploads(t *testing.T) {
	var r retries
	denied := errors.New("denied")
	r.failed(Instant{NS: 1}, "delete doomed objects", denied)
	if r.uploads.err != nil || !errors.Is(r.upkeep.err, denied) || r.uploadsFail() {
		t.Fatalf("%+v", r)
	}
	r.failed(Instant{NS: 5}, whatPut, denied)
	r.failed(Instant{NS: 6}, "delete doomed objects", denied)
	if r.uploads.sinceNS != 5 || r.upkeep.sinceNS != 1 || !r.uploadsFail() {
		t.Fatalf("%+v", r)
	}
	r.worked(whatPut)
	if r.uploads.err != nil || r.upkeep.err == nil {
		t.Fatalf("%+v", r)
	}
}
