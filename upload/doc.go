// Package upload moves a log to an object store, and reads it from there.
//
// The format, docs/format.md has every byte of it:
//
//   - A data object holds a range of the log: the records of its streams in blocks,
//     sorted by stream and offset, and a journal with everything else in commit
//     order. [Builder] makes one out of frames, [DecodeObject] and [Archive] read it.
//   - A state object is a checkpoint of streams and producers, an index object the
//     list of the groups of objects below some position.
//   - The [Manifest] is the only thing that ever changes. What it does not name does
//     not exist.
//
// [Archive] is the read side: records by offset or time, a replay in commit order,
// the state. [Verify] checks a whole store. Everything that is read is checked, down
// to the checksum that each record got when it was appended.
package upload
