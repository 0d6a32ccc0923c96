//go:build !race

package suite

// RaceDetector reports whether the tests run under the race detector.
const RaceDetector = false
