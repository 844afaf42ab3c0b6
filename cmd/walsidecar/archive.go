package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"time"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/wire"
)

// errStop ends an iteration whose caller has enough.
var errStop = errors.New("enough")

// readArchived is `read` without a sidecar.
func readArchived(a *app, cmd *cobra.Command, name string, f readFlags) error {
	if err := f.store.onlyWithout(cmd, "follow", "timeout", "socket"); err != nil {
		return err
	}
	var since time.Time
	if cmd.Flags().Changed("since") {
		var err error
		if since, err = parseSince(f.since); err != nil {
			return err
		}
	}
	ctx, stop := untilInterrupted(cmd.Context())
	defer stop()
	archive, err := f.store.openArchive(ctx)
	if err != nil {
		return err
	}
	directory, joins, err := archive.Streams(ctx)
	if err != nil {
		return err
	}
	info, err := directory.ByName(name)
	if err != nil {
		return fmt.Errorf("stream %q of node %q in %s: %w", name, f.store.node, f.store.url, err)
	}
	from := info.First
	switch {
	case cmd.Flags().Changed("offset"):
		from = f.offset
	case cmd.Flags().Changed("last"):
		from = max(info.First, info.Next-min(info.Next, f.last))
	case cmd.Flags().Changed("since"):
		at, found, err := archive.FindTimeIn(ctx, upload.Parts(joins, info.ID, info.First, info.Next), since.UnixNano())
		if err != nil {
			return err
		}
		if from = info.Next; found {
			from = at
		}
	}
	p := newRecordPrinter(a)
	return p.printAll(ctx, archivedRecords(ctx, archive, joins, &info, from, f.max), p.line)
}

// archivedRecords iterates over the records of a stream from an offset on, at most limit
// of them unless that is 0.
func archivedRecords(ctx context.Context, a *upload.Archive, joins []upload.Join, info *stream.StreamInfo, from, limit uint64) iter.Seq2[walsidecar.Record, error] {
	return func(yield func(walsidecar.Record, error) bool) {
		gap := func(kind wire.GapKind, from, to uint64) error {
			if !yield(walsidecar.Record{}, &walsidecar.Gap{Kind: kind, Stream: info.Name, From: from, To: to}) {
				return errStop
			}
			return nil
		}
		if limit == 0 {
			limit = math.MaxUint64
		}
		if from < info.First {
			if gap(wire.GapTrimmed, from, info.First) != nil {
				return
			}
			from = info.First
		}
		if from >= info.Next {
			return
		}
		err := a.ReadParts(ctx, upload.Parts(joins, info.ID, from, info.Next), func(r *upload.Record) error {
			record := recordOf(r, info.Name)
			if limit--; !yield(record, nil) || limit == 0 {
				return errStop
			}
			return nil
		}, func(lost bool, from, to uint64) error {
			if lost {
				return gap(wire.GapDataLost, from, to)
			}
			return gap(wire.GapTrimmed, from, to)
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(walsidecar.Record{}, err)
		}
	}
}

// recordOf is a record as a client would be given it, valid as long as r is.
func recordOf(r *upload.Record, name string) walsidecar.Record {
	return walsidecar.Record{Stream: name, StreamID: uint64(r.Stream), Offset: r.Offset, Position: r.Position,
		Timestamp: time.Unix(0, r.TimestampNS), BatchEnd: r.BatchEnd, Headers: r.Headers, Data: r.Payload}
}

// replayArchived is `replay` without a sidecar.
func replayArchived(a *app, cmd *cobra.Command, f *storeFlags, position uint64) error {
	if err := f.onlyWithout(cmd, "follow", "timeout", "socket"); err != nil {
		return err
	}
	ctx, stop := untilInterrupted(cmd.Context())
	defer stop()
	archive, err := f.openArchive(ctx)
	if err != nil {
		return err
	}
	names, err := streamNames(ctx, archive)
	if err != nil {
		return err
	}
	a.json = true // gaps are lines too
	p := newRecordPrinter(a)
	return p.printAll(ctx, archivedLog(ctx, archive, names, position), p.object)
}

// archivedLog iterates over a log in commit order.
func archivedLog(ctx context.Context, a *upload.Archive, names map[stream.ID]string, position uint64) iter.Seq2[walsidecar.Record, error] {
	return func(yield func(walsidecar.Record, error) bool) {
		replay := a.Replay(position)
		defer replay.Close()
		var items stream.ItemReader
		for {
			e, err := replay.Next(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(walsidecar.Record{}, err)
				return
			}
			switch {
			case e.GapTo != 0:
				kind := wire.GapTrimmed
				if a.Manifest().Lost(e.Position, e.GapTo) {
					kind = wire.GapDataLost
				}
				if !yield(walsidecar.Record{}, &walsidecar.Gap{Kind: kind, From: e.Position, To: e.GapTo}) {
					return
				}
			case e.Item != nil:
				items.Reset(e.Item, e.Position)
				if it := items.Next(); it != nil && it.Kind == stream.KindStreamCreate {
					names[it.Stream] = string(it.Name)
				}
			}
			for i := range e.Records {
				if !yield(recordOf(&e.Records[i], names[e.Records[i].Stream]), nil) {
					return
				}
			}
		}
	}
}

// streamNames are the names of the streams that exist, by every id that they have had.
func streamNames(ctx context.Context, a *upload.Archive) (map[stream.ID]string, error) {
	directory, joins, err := a.Streams(ctx)
	if err != nil {
		return nil, err
	}
	names := map[stream.ID]string{}
	for info := range allStreams(directory, "") {
		names[info.ID] = info.Name
	}
	for i := len(joins) - 1; i >= 0; i-- { // from the newest on
		names[joins[i].Before] = names[joins[i].Stream]
	}
	return names, nil
}

// allStreams iterates over the streams whose names begin with prefix, by name.
func allStreams(d *stream.Directory, prefix string) iter.Seq[*stream.StreamInfo] {
	return func(yield func(*stream.StreamInfo) bool) {
		var page []stream.StreamInfo
		for cursor, more := "", true; more; {
			page, more = d.List(prefix, cursor, stream.MaxListed, page[:0])
			for i := range page {
				if !yield(&page[i]) {
					return
				}
				cursor = page[i].Name
			}
		}
	}
}
