package process

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stack-controller/stack-controller/internal/procfs"
)

// FuzzRecord checks that a record which can be read is the same after it is written again, and that the error for a damaged record is
// errCorrupt.
func FuzzRecord(f *testing.F) {
	seed, err := json.Marshal(record{Namespace: "team", Name: "app", UID: "1", Agent: procfs.Identity{PID: 1, StartTime: 2, Boot: "b"}})
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
