package process

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

// FuzzRecord checks that a record that is read reads the same when it is written again, and that a damaged one is known as such.
func FuzzRecord(f *testing.F) {
	seed, err := json.Marshal(record{Namespace: "team", Name: "app", UID: "1", Agent: identity{PID: 1, StartTime: 2, Boot: "b"}, Worked: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"agent": {"pid": -1, "startTime": 18446744073709551615}}`))
	f.Add([]byte(`{"agent": {"pid": 1e400}}`))
	f.Add([]byte("{}" + strings.Repeat(" ", maxRecordSize)))
	f.Add([]byte(`{"namespace": "../..", "name": "` + strings.Repeat("x", maxRecordSize) + `"}`))
	f.Add([]byte("null"))
	d := directory{path: f.TempDir()}
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(d.recordFile(), content, 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := d.readRecord()
		if err != nil {
			if !errors.Is(err, errCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if err := d.writeRecord(found); err != nil {
			t.Fatal(err)
		}
		if again, err := d.readRecord(); err != nil || again != found {
			t.Fatalf("%+v became %+v, %v", found, again, err)
		}
	})
}

// FuzzStat checks that the name of a program cannot pass for the numbers that identify its process.
func FuzzStat(f *testing.F) {
	const after = " S 1 10 10 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4242 100"
	f.Add("agent")
	f.Add("a) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 0 0 0 0 99 (b")
	f.Add("\n) (\x00")
	f.Fuzz(func(t *testing.T, name string) {
		stat, err := parseStat([]byte("7 (" + name + ")" + after))
		if err != nil || stat.state != 'S' || stat.session != 10 || stat.startTime != 4242 {
			t.Fatalf("%q: %+v, %v", name, stat, err)
		}
		// Whatever it is instead, it does not crash.
		_, _ = parseStat([]byte(name))
	})
}
