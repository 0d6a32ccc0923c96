package backoff

import (
	"math"
	"testing"
	"time"
)

func TestExponentialGrowsUpToTheLongest(t *testing.T) {
	for failures, want := range map[int64]time.Duration{
		-1: 10 * time.Second, 0: 10 * time.Second, 1: 10 * time.Second, 2: 30 * time.Second, 3: 90 * time.Second,
		4: 100 * time.Second, math.MaxInt64: 100 * time.Second,
	} {
		if got := Exponential(10*time.Second, 3, failures, 100*time.Second); got != want {
			t.Errorf("after %d failures: %s, want %s", failures, got, want)
		}
	}
}

func TestProportionalIsHalfOfTheWaitWithinItsBounds(t *testing.T) {
	for waited, want := range map[time.Duration]time.Duration{
		-time.Hour: time.Second, 0: time.Second, 10 * time.Second: 5 * time.Second, time.Hour: time.Minute,
	} {
		if got := Proportional(waited, time.Second, time.Minute); got != want {
			t.Errorf("after %s: %s, want %s", waited, got, want)
		}
	}
}

func TestLeftIsAtMostAllWhateverTheOtherClockSays(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for age, left := range map[time.Duration]time.Duration{
		0: 2 * time.Second, time.Second: time.Second, 2 * time.Second: 0, time.Hour: 0,
		-time.Second: 2 * time.Second, -time.Hour: 0,
	} {
		if got := Left(2*time.Second, now.Add(-age), now); got != left {
			t.Errorf("at the age of %s: %s, want %s", age, got, left)
		}
	}
}
