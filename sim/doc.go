// Package sim is the seeded world in which the log has to keep its promises: a
// stream.Committer over a ringwal.Log over a simdev.Disk, driven as a node drives
// them, by one goroutine, with time as a number. Requests, the order in which device
// writes begin and end, crashes and faults are all drawn from a seed, so that a
// history that breaks a promise breaks it again.
//
// # The parts
//
//   - [Run] plays one history and returns the [Failure] that it ends in, or nil.
//   - A host is one incarnation of the process: the start routine, the commit loop
//     in steps, the shutdown. A crash may hit between any two of its device
//     operations, during the start and the recovery too, and writes of a crashed host
//     may land while the next one is at work.
//   - In a part of the histories there is an object store (package simstore, with lost
//     answers, late puts and outages), and hosts run upload.Core: the world carries its
//     actions out in any order. The archive oracle compares every group that a manifest
//     names with what was submitted.
//   - In histories of the kind Peers three machines share the disk (package simfence). A
//     start is a coroutine that runs fence.Acquire and the routine of package node and
//     stops before each operation; starts race, and crash alone or with their machines.
//     Owners that were superseded go on until they find out, or are paused and wake up.
//   - The model is what the contract says a request does: written apart from package
//     stream, it predicts every answer.
//   - The oracle remembers every item and frame that was submitted and every answer
//     that left, and judges each recovery by it. Its failures are named after the
//     promises of docs/design.md, P1 to P12, that they break.
//
// # Replay
//
// A failing test prints the seed and the trace of the history:
//
//	go test ./sim -run TestHistories -seed 123
//
// Seeds that once failed are in testdata/seeds.txt and are replayed first.
package sim
