package main

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// recordLine is a record as JSON: a line of read --json, replay and salvage.
type recordLine struct {
	Stream        string       `json:"stream"`
	StreamID      uint64       `json:"stream_id"` // two streams of one name have two ids
	Offset        uint64       `json:"offset"`
	Position      uint64       `json:"position"` // of its batch, the same for all of its records
	Timestamp     string       `json:"timestamp"`
	Headers       []headerLine `json:"headers"`
	Payload       *string      `json:"payload,omitempty"`
	PayloadBase64 []byte       `json:"payload_base64,omitempty"`
	BatchEnd      bool         `json:"batch_end"` // the last record of its batch
}

// headerLine is a header; keys may repeat, so they are no object's.
type headerLine struct {
	Key         string  `json:"key"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
}

// gapLine says which offsets of a stream, or without one which positions, are missing.
type gapLine struct {
	Gap    string `json:"gap"` // trimmed, deleted, sealed, data_lost, …
	Stream string `json:"stream,omitempty"`
	From   uint64 `json:"from"`
	To     uint64 `json:"to"`
}

// textOrBytes is b as text where it is UTF-8, else as bytes.
func textOrBytes(b []byte) (text *string, bytes []byte) {
	if utf8.Valid(b) {
		s := string(b)
		return &s, nil
	}
	return nil, b
}

// newRecordLine is the line of a record.
func newRecordLine(r *walsidecar.Record) recordLine {
	line := recordLine{
		Stream: r.Stream, StreamID: r.StreamID, Offset: r.Offset, Position: r.Position,
		Timestamp: r.Timestamp.UTC().Format(time.RFC3339Nano), Headers: []headerLine{}, BatchEnd: r.BatchEnd,
	}
	line.Payload, line.PayloadBase64 = textOrBytes(r.Data)
	for key, value := range r.Headers.All() {
		h := headerLine{Key: key}
		h.Value, h.ValueBase64 = textOrBytes(value)
		line.Headers = append(line.Headers, h)
	}
	return line
}

// object prints a record as a JSON line.
func (p *recordPrinter) object(r *walsidecar.Record) error { return p.jsonLine(newRecordLine(r)) }

func (p *recordPrinter) gapObject(g gapLine) error { return p.jsonLine(g) }

// jsonLine prints an object as one line.
func (p *recordPrinter) jsonLine(object any) error {
	enc := json.NewEncoder(p.out)
	enc.SetEscapeHTML(false)
	return enc.Encode(object)
}
