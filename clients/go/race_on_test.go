//go:build race

package walsidecar

// raceDetector: pools forget at random under it.
const raceDetector = true
