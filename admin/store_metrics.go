package admin

import (
	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/upload/store"
)

var (
	uploadedPosition = describe("uploaded_position_bytes", "Everything below it is in the object store and in its manifest.")
	lagBytes         = describe("upload_lag_bytes", "Durable bytes of the log that are not in the store.")
	lagRecords       = describe("upload_lag_records", "Durable records that are not in the store.")
	lagSeconds       = describe("upload_lag_seconds", "For how long the oldest of them has been durable.")
	uploadFailing    = describe("upload_failing", "1 while what goes to the store fails and is tried again.")
	uploadFenced     = describe("upload_fenced", "1 once another owner has the manifest.")
	uploadedRecords  = describe("uploaded_records_total", "Records committed to the store.")
	objectsPut       = describe("upload_objects_total", "Objects committed to the store.")
	storedBytes      = describe("upload_stored_bytes_total", "Their bytes.")
	commits          = describe("upload_commits_total", "Manifests committed.")
	compactions      = describe("upload_compactions_total", "Compactions of objects.")
	deletedObjects   = describe("upload_deleted_objects_total", "Objects that were deleted because nothing names them any more.")
	heldBytes        = describe("upload_memory_bytes", "Memory of objects that are being built or put.")

	coldHits   = describe("cold_cache_hits_total", "Parts of objects that were read from memory.")
	coldMisses = describe("cold_cache_misses_total", "Parts of objects that were read from the store.")
	coldBytes  = describe("cold_cache_bytes", "Memory of parts of objects.")

	storeRequests  = describe("store_requests_total", "Requests to the object store, answered or not.", "operation", "class")
	storeRetries   = describe("store_retries_total", "Requests after the first of an operation.", "class")
	storeThrottles = describe("store_throttles_total", "Answers that asked for fewer requests.", "class")
	storeFailures  = describe("store_failures_total", "Operations that failed: unavailable, denied, outcome unknown.", "class")
	storeSent      = describe("store_sent_bytes_total", "Bytes of bodies sent.", "class")
	storeReceived  = describe("store_received_bytes_total", "Bytes of bodies received.", "class")
	storeLimit     = describe("store_concurrency_limit", "Requests that may be on their way at once; it falls when the store throttles. 0: no limit.", "class")
	storeSkew      = describe("store_clock_skew_seconds", "How far the server's clock is ahead. Nothing depends on it but the signatures of requests.")
	storeExpiry    = describe("store_credentials_expire_timestamp_seconds", "When the credentials end, Unix time; absent where they do not.")

	fenceMode = describe("fence", "What keeps an earlier owner from writing; always 1.", "mode")
)

// uploads sends how far the store has what the log has.
func (e emitter) uploads(u *node.StatusUploads) {
	e.gauge(uploadedPosition, float64(u.UploadedPosition))
	e.gauge(lagBytes, float64(u.LagBytes))
	e.gauge(lagRecords, float64(u.LagRecords))
	e.gauge(lagSeconds, u.LagSeconds)
	e.gauge(uploadFailing, boolean(u.State == node.UploadsRetrying))
	e.gauge(uploadFenced, boolean(u.State == node.UploadsFenced))
	e.counter(uploadedRecords, u.UploadedRecords)
	e.counter(objectsPut, u.Objects)
	e.counter(storedBytes, u.StoredBytes)
	e.counter(commits, u.Commits)
	e.counter(compactions, u.Compactions)
	e.counter(deletedObjects, u.DeletedObjects)
	e.gauge(heldBytes, float64(u.HeldBytes))
	e.counter(coldHits, u.ColdHits)
	e.counter(coldMisses, u.ColdMisses)
	e.gauge(coldBytes, float64(u.ColdBytes))
}

// requests sends what was asked of the store; requests and bytes are what it costs.
func (e emitter) requests(c *store.Counters) {
	for class := range c.Retries {
		label := store.Class(class).String()
		for op := range c.Requests {
			e.counter(storeRequests, c.Requests[op][class].Load(), store.Operation(op).String(), label)
		}
		e.counter(storeRetries, c.Retries[class].Load(), label)
		e.counter(storeThrottles, c.Throttles[class].Load(), label)
		e.counter(storeFailures, c.Failures[class].Load(), label)
		e.counter(storeSent, c.SentBytes[class].Load(), label)
		e.counter(storeReceived, c.ReceivedBytes[class].Load(), label)
		e.gauge(storeLimit, float64(c.Limit[class].Load()), label)
	}
	e.gauge(storeSkew, c.ClockSkew().Seconds())
	if at := c.CredentialsExpire(); !at.IsZero() {
		e.gauge(storeExpiry, float64(at.Unix()))
	}
}
