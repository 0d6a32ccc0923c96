//go:build !race

package git_test

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/source/git"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const (
	// containerLimit is the memory limit of the controller's container that has to be enough, in MiB.
	containerLimit = 512

	// restOfTheController is how much memory everything else in the controller may use meanwhile, in MiB.
	restOfTheController = 240

	attackedURL = "ATTACKED_URL"
	attackedSHA = "ATTACKED_SHA"
)

// productionLimits are the defaults of the controller's flags.
var productionLimits = archive.Limits{MaxDownloadSize: 256 << 20, MaxUnpackedSize: 1 << 30, MaxEntries: 100_000}

// TestHostileRepositoriesFitTheContainer runs more checkouts than the controller at the same time, and as many requests for refs. Each
// repository takes as much memory as it can. They run in a process with the memory limit of the controller.
func TestHostileRepositoriesFitTheContainer(t *testing.T) {
	suite.WithoutRaceDetector(t)
	suite.Long(t, "takes as much memory as it may")
	g := NewWithT(t)
	packs := map[string][]byte{}
	var shas []string
	for _, build := range []func() (string, []byte){largeDifferences, manyObjects, longNames} {
		sha, pack := build()
		packs[sha], shas = pack, append(shas, sha)
	}
	server := serve(t, hostileRepositories(packs))
	victim := exec.Command(os.Args[0], "-test.run=^TestVictimOfHostileRepositories$", "-test.v")
	victim.Env = append(os.Environ(), attackedURL+"="+server.URL, attackedSHA+"="+strings.Join(shas, ","),
		fmt.Sprintf("GOMEMLIMIT=%dMiB", containerLimit*9/10))
	output, err := victim.CombinedOutput()
	t.Logf("%s", output)
	g.Expect(err).NotTo(HaveOccurred())
	_, after, found := strings.Cut(string(output), "peak of the resident memory: ")
	g.Expect(found).To(BeTrue())
	kilobytes, err := strconv.Atoi(strings.Fields(after)[0])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kilobytes>>10).To(BeNumerically("<", containerLimit), "MiB resident at most")
}

// TestVictimOfHostileRepositories runs in a process of its own, see above.
func TestVictimOfHostileRepositories(t *testing.T) {
	url := os.Getenv(attackedURL)
	if url == "" {
		t.Skip("is run by TestHostileRepositoriesFitTheContainer")
	}
	rest := bytes.Repeat([]byte("rest"), restOfTheController<<18)
	client := newClient(t, git.Options{Limits: productionLimits, Timeout: 5 * time.Minute, CheckoutTimeout: 5 * time.Minute})
	var running sync.WaitGroup
	for n := range 16 {
		running.Go(func() {
			_, err := client.Resolve(t.Context(), git.Remote{URL: url + "/refs"}, fmt.Sprint("branch", n))
			t.Logf("look %d: %v", n, err)
		})
	}
	for kind, sha := range strings.Split(os.Getenv(attackedSHA), ",") {
		for n := range []int{8, 2, 2}[kind] {
			running.Go(func() {
				_, err := client.Archive(t.Context(), git.Remote{URL: url + "/" + sha, Namespace: fmt.Sprint("team-", n)}, sha, io.Discard)
				t.Logf("checkout of kind %d: %v", kind, err)
			})
		}
	}
	running.Wait()
	t.Logf("peak of the resident memory: %s", strings.TrimSuffix(residentPeak(), " kB"))
	if len(rest) == 0 {
		t.Fatal("nothing else was in memory")
	}
}

// hostileRepositories serves each packfile at the path of its SHA, and at /refs more branches than a client can keep.
func hostileRepositories(packs map[string][]byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		sha, _, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/"), "/")
		if request.Method == http.MethodPost {
			_, _ = io.Copy(io.Discard, request.Body)
			w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
			fmt.Fprint(w, "00000008NAK\n")
			_ = band(w, 1, packs[sha])
			fmt.Fprint(w, "0000")
			return
		}
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		fmt.Fprint(w, "001e# service=git-upload-pack\n0000")
		if sha != "refs" {
			line := sha + " refs/heads/main\x00shallow side-band-64k ofs-delta"
			fmt.Fprintf(w, "%04x%s\n0000", len(line)+5, line)
			return
		}
		long := strings.Repeat("x", 900)
		for n := range 65_000 {
			line := fmt.Sprintf("%040d refs/heads/%s%d\n", n, long, n)
			if _, err := fmt.Fprintf(w, "%04x%s", len(line)+4, line); err != nil {
				return
			}
		}
		fmt.Fprint(w, "0000")
	})
}

// largeDifferences returns a packfile with objects of 32 MiB that are stored as deltas.
func largeDifferences() (string, []byte) {
	const size = 32 << 20
	b := &packBuilder{}
	base := b.write(3, size, nil, make([]byte, size))
	// The delta copies all of the base except its last byte, in pieces of less than 16 MiB.
	differs := func(from int, last byte) int {
		delta := binary.AppendUvarint(binary.AppendUvarint(nil, size), size)
		for offset := 0; offset < size-1; {
			length := min(size-1-offset, 0xffffff)
			delta = append(delta, 0xff, byte(offset), byte(offset>>8), byte(offset>>16), byte(offset>>24), byte(length), byte(length>>8), byte(length>>16))
			offset += length
		}
		delta = append(delta, 1, last)
		return b.write(6, len(delta), distance(12+b.content.Len()-from), delta)
	}
	for n := range 2 {
		child := differs(base, byte(n+1))
		differs(differs(child, byte(n+100)), byte(n+200))
	}
	return b.commit(b.object(2, nil), "large differences")
}

// distance encodes how far away a base is, as in a packfile.
func distance(away int) []byte {
	encoded := []byte{byte(away & 0x7f)}
	for away >>= 7; away > 0; away >>= 7 {
		away--
		encoded = append([]byte{byte(away&0x7f) | 0x80}, encoded...)
	}
	return encoded
}

// manyObjects returns a packfile with nearly as many objects as the limits allow. Most of them are deltas of an object that comes after
// them.
func manyObjects() (string, []byte) {
	b := &packBuilder{}
	last := []byte("the last")
	sum := sha1.Sum(append([]byte("blob 8\x00"), last...))
	for n := range 199_000 {
		delta := binary.BigEndian.AppendUint32([]byte{8, 12, 0x90, 8, 4}, uint32(n))
		b.write(7, len(delta), sum[:], delta)
	}
	b.object(3, last)
	return b.commit(b.object(2, nil), "many objects")
}

// longNames returns a packfile with 30 nested directories of 3,000 files with long names.
func longNames() (string, []byte) {
	b := &packBuilder{}
	blob := b.object(3, []byte("content"))
	tree := b.object(2, nil)
	for level := range 30 {
		content := append([]byte("40000 !\x00"), tree...)
		for n := range 3_000 {
			content = append(fmt.Appendf(content, "100644 %s%02d%05d\x00", strings.Repeat("x", 230), level, n), blob...)
		}
		tree = b.object(2, content)
	}
	return b.commit(tree, "long names")
}
