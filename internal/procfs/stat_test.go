package procfs

import (
	"testing"

	. "github.com/onsi/gomega"
)

// after is the content of /proc/PID/stat from the name of the program to the exit signal, without both.
const after = " S 1 2 3 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4711 2998272 423 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 "

func TestNameOfAProgramDoesNotConfuseItsState(t *testing.T) {
	for _, name := range []string{"agent", "a b", "a) Z 9 9 9", "()"} {
		g := NewWithT(t)
		stat, err := parseStat([]byte("42 (" + name + ")" + after + "17"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(stat).To(Equal(Stat{Name: name, State: 'S', Parent: 1, Group: 2, Session: 3, StartTime: 4711}))
	}
	for _, damaged := range []string{"", "42 (agent) S 1", "42 )agent(" + after + "17"} {
		_, err := parseStat([]byte(damaged))
		NewWithT(t).Expect(err).To(HaveOccurred(), damaged)
	}
}

func TestProcessWhoseEndGivesNoSignalIsNoThread(t *testing.T) {
	g := NewWithT(t)
	g.Expect(parseStat([]byte("42 (agent)" + after + "0"))).Error().NotTo(HaveOccurred())
	g.Expect(parseStat([]byte("42 (agent)" + after + "-1"))).Error().To(MatchError(ErrNotRunning))
}

// FuzzStat checks that the name of a program cannot be mistaken for the numbers that identify its process.
func FuzzStat(f *testing.F) {
	f.Add("agent")
	f.Add("a) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 0 0 0 0 99 (b")
	f.Add("\n) (\x00")
	f.Fuzz(func(t *testing.T, name string) {
		stat, err := parseStat([]byte("7 (" + name + ")" + after + "17"))
		if err != nil || stat != (Stat{Name: name, State: 'S', Parent: 1, Group: 2, Session: 3, StartTime: 4711}) {
			t.Fatalf("%q: %+v, %v", name, stat, err)
		}
		// Parsing any other content must not panic.
		_, _ = parseStat([]byte(name))
	})
}
