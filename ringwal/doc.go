// Package ringwal is the cyclic log on one device: its format, group commit,
// recovery, trim and superblocks. docs/format.md describes every byte.
//
// # Shape
//
// A device holds four superblock slots of [SlotBytes] and behind them the ring.
// The log is addressed by position, a uint64 that only grows; position p lies at
// RingStart + p mod CapacityBytes. The ring holds frames, each one device write
// of whole blocks, each carrying the checksum of the frame before it. All ranges
// are half-open.
//
// # Who drives it
//
// [Log] is a deterministic state machine with one owner: no clock, goroutine,
// random source or I/O inside. It hands out the next frame and the next
// superblock copy to write ([Log.Next], [Log.NextSuperblock]); its owner writes
// them and reports ([Log.Complete], [Log.SuperblockDone]). Only [Format],
// [ReadSuperblocks], [Recover], [VerifyTail] and [Salvage] touch a device, and
// only Format writes.
//
// # Order of a start
//
//	sbs, err := ReadSuperblocks(d)          // identity: before the first write of any kind
//	r, err := Recover(d, sbs, visitor)      // read-only
//	d.Flush(); err = VerifyTail(d, sbs, r)  // ErrTailChanged: from the top again
//	log, err := Start(sbs, r, epoch, buffers)
//	for { NextSuperblock, write, SuperblockDone }   // until SuperblockInForce
//	log.Checkpoint(state)                   // unless r.CheckpointIsLast
//
// A log without a recorded checkpoint takes no items: [Log.Reserve] answers
// ErrWait until a superblock in force records the first one as durable.
package ringwal
