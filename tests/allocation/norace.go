//go:build !race

package allocation

// raceDetector reports whether the calls run under the race detector.
const raceDetector = false
