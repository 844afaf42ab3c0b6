//go:build !race

package walsidecar

const raceDetector = false
