package git_test

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/source/git"
	"github.com/stack-controller/stack-controller/tests/framework/allocation"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// plant commits a tree that git itself would refuse to write, to the branch main.
func (o *origin) plant(tree []byte) string {
	o.t.Helper()
	hash := gitWith(o.t, o.bare, tree, "hash-object", "-w", "--literally", "-t", "tree", "--stdin")
	commit := fmt.Sprintf("tree %s\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nplanted\n", hash)
	sha := gitWith(o.t, o.bare, []byte(commit), "hash-object", "-w", "--literally", "-t", "commit", "--stdin")
	gitIn(o.t, o.bare, "update-ref", "refs/heads/main", sha)
	return sha
}

func treeLine(t testing.TB, mode, name, hash string) []byte {
	raw, err := hex.DecodeString(hash)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return append([]byte(mode+" "+name+"\x00"), raw...)
}

func TestHostileTreesAreRefused(t *testing.T) {
	suite.WithoutRaceDetector(t)
	o, url := repository(t)
	blob := gitWith(t, o.bare, []byte("content"), "hash-object", "-w", "--stdin")
	sub := gitWith(t, o.bare, treeLine(t, "100644", "config", blob), "hash-object", "-w", "-t", "tree", "--stdin")
	client := newClient(t, git.Options{})
	for name, tree := range map[string][]byte{
		"git's directory":  treeLine(t, "40000", ".git", sub),
		"in capitals":      treeLine(t, "40000", ".GIT", sub),
		"short name":       treeLine(t, "40000", "git~1", sub),
		"up":               treeLine(t, "40000", "..", sub),
		"slash":            treeLine(t, "100644", "../../etc/passwd", blob),
		"absolute":         treeLine(t, "100644", "/etc/passwd", blob),
		"backslash":        treeLine(t, "100644", `..\passwd`, blob),
		"git's config":     treeLine(t, "100644", `.git\config`, blob),
		"twice":            append(treeLine(t, "120000", "x", blob), treeLine(t, "40000", "x", sub)...),
		"unknown mode":     treeLine(t, "10644", "x", blob),
		"damaged":          []byte("100644 x\x00short"),
		"a file as a tree": treeLine(t, "40000", "x", blob),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client.Archive(t.Context(), git.Remote{URL: url}, o.plant(tree), io.Discard)
			typed := expectKind(t, err, map[bool]git.Kind{true: git.Unreachable, false: git.Other}[name == "a file as a tree" || name == "damaged"])
			NewWithT(t).Expect(typed.Message).NotTo(BeEmpty())
		})
	}
	t.Run("case is not merged", func(t *testing.T) {
		tree := append(treeLine(t, "100644", "A", blob), treeLine(t, "100644", "a", blob)...)
		NewWithT(t).Expect(unpacked(t, checkedOut(t, client, git.Remote{URL: url}, o.plant(tree)))).To(HaveLen(2))
	})
	t.Run("modes of old versions of git", func(t *testing.T) {
		var tree []byte
		for n, mode := range []string{"100600", "100640", "100664", "100666", "0100644", "100700", "100775", "100777"} {
			tree = append(tree, treeLine(t, mode, fmt.Sprint(n), blob)...)
		}
		tree = append(append(tree, treeLine(t, "040755", "8", sub)...), treeLine(t, "120777", "9", gitWith(t, o.bare, []byte("8/config"), "hash-object", "-w", "--stdin"))...)
		sha := o.plant(tree)
		g := NewWithT(t)
		g.Expect(unpacked(t, checkedOut(t, client, git.Remote{URL: url}, sha))).To(Equal(map[string]string{
			"0": "content", "1": "content", "2": "content", "3": "content", "4": "content", "5*": "content", "6*": "content", "7*": "content",
			"8": "<dir>", "8/config": "content", "9": "content"}))
		listed := gitIn(t, o.bare, "ls-tree", sha)
		g.Expect(strings.Count(listed, "100644 blob")).To(Equal(5), "git reads them in the same way: %s", listed)
		g.Expect(strings.Count(listed, "100755 blob")).To(Equal(3), listed)
	})
	t.Run("ten to the tenth of files", func(t *testing.T) {
		hash := sub
		for range 10 {
			var tree []byte
			for n := range 10 {
				tree = append(tree, treeLine(t, "40000", fmt.Sprint(n), hash)...)
			}
			hash = gitWith(t, o.bare, tree, "hash-object", "-w", "-t", "tree", "--stdin")
		}
		started := time.Now()
		checkoutFails(t, client, git.Remote{URL: url}, o.plant(treeLine(t, "40000", "bomb", hash)), git.TooLarge)
		NewWithT(t).Expect(time.Since(started)).To(BeNumerically("<", time.Minute))
	})
}

// packObject is an object of a packfile.
func packObject(kind byte, size uint64, content []byte) []byte {
	header := []byte{kind<<4 | byte(size&15)}
	for size >>= 4; size > 0; size >>= 7 {
		header[len(header)-1] |= 0x80
		header = append(header, byte(size&0x7f))
	}
	var out bytes.Buffer
	out.Write(header)
	zip := zlib.NewWriter(&out)
	_, _ = zip.Write(content)
	_ = zip.Close()
	return out.Bytes()
}

func packOf(objects ...[]byte) []byte {
	pack := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(len(objects)))
	for _, object := range objects {
		pack = append(pack, object...)
	}
	sum := sha1.Sum(pack)
	return append(pack, sum[:]...)
}

// hostileServer has one branch at the SHA and answers every request for it with the content.
func hostileServer(t *testing.T, sha string, answer func(w io.Writer)) string {
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			line := sha + " refs/heads/main\x00shallow side-band-64k ofs-delta"
			fmt.Fprintf(w, "001e# service=git-upload-pack\n0000%04x%s\n0000", len(line)+5, line)
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		answer(w)
	})).URL + "/repo"
}

func band(w io.Writer, number byte, content []byte) error {
	for len(content) > 0 {
		n := min(len(content), 65515)
		if _, err := fmt.Fprintf(w, "%04x%c%s", n+5, number, content[:n]); err != nil {
			return err
		}
		content = content[n:]
	}
	return nil
}

func TestHostilePacksAreRefused(t *testing.T) {
	suite.WithoutRaceDetector(t)
	sha := strings.Repeat("a", 40)
	zeros := make([]byte, 32<<20)
	small := []byte("base")
	base := packObject(3, uint64(len(small)), small)
	after := func(distance int, size uint64, rest ...byte) []byte {
		content := append(binary.AppendUvarint([]byte{4}, size), rest...)
		raw := packObject(6, uint64(len(content)), content)
		return append(append(append([]byte{}, raw[:1]...), byte(distance)), raw[1:]...)
	}
	delta := func(size uint64, rest ...byte) []byte { return after(len(base), size, rest...) }
	chain := [][]byte{base, delta(4, 0x90, 4)}
	for len(chain) < 4098 {
		chain = append(chain, after(len(chain[1]), 4, 0x90, 4))
	}
	loop := func(to string) []byte {
		hash, _ := hex.DecodeString(to)
		raw := packObject(7, 4, []byte{4, 4, 0x90, 4})
		return append(append(append([]byte{}, raw[:1]...), hash...), raw[1:]...)
	}
	baseHash := sha1.Sum([]byte("blob 4\x00base"))
	twice := [][]byte{base, base}
	for range 40 { // each is a copy of the base, so that each may be the base of all others
		twice = append(twice, loop(hex.EncodeToString(baseHash[:])))
	}
	for name, tt := range map[string]struct {
		pack []byte
		kind git.Kind
	}{
		"long chain of differences":  {packOf(chain...), git.Unreachable},
		"chain as long as git's":     {packOf(chain[:4096]...), git.RevisionNotFound},
		"bases that are there twice": {packOf(twice...), git.RevisionNotFound},
		"bomb":                       {packOf(packObject(3, 32<<20, zeros)), git.TooLarge},
		"bomb that lies":             {packOf(packObject(3, 10, zeros)), git.Unreachable},
		"shorter than it says":       {packOf(packObject(3, 100, []byte("x"))), git.Unreachable},
		"many objects":               {append([]byte("PACK\x00\x00\x00\x02"), 0xff, 0xff, 0xff, 0xff), git.TooLarge},
		"cut off":                    {packOf(base)[:14], git.Unreachable},
		"not a pack":                 {[]byte("hello, this is no packfile"), git.Unreachable},
		"empty":                      {packOf(), git.RevisionNotFound},
		"without the commit":         {packOf(base), git.RevisionNotFound},
		"huge difference":            {packOf(base, delta(1<<40, 0x90, 4)), git.TooLarge},
		"difference that lies":       {packOf(base, delta(1000, 0x90, 4)), git.Unreachable},
		"difference out of bounds":   {packOf(base, delta(200, 0x91, 100, 200)), git.Unreachable},
		"difference from nothing":    {packOf(loop(strings.Repeat("b", 40))), git.Unreachable},
		"difference before a base":   {packOf(delta(4, 0x90, 4)), git.Unreachable},
		"unknown type":               {packOf(packObject(5, 1, []byte("x"))), git.Unreachable},
		"size with too many digits":  {packOf(append(bytes.Repeat([]byte{0xbf}, 20), 0)), git.Unreachable},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			url := hostileServer(t, sha, func(w io.Writer) {
				fmt.Fprint(w, "00000008NAK\n")
				_ = band(w, 1, tt.pack)
				fmt.Fprint(w, "0000")
			})
			client := newClient(t, git.Options{Limits: archive.Limits{MaxUnpackedSize: 8 << 20, MaxDownloadSize: 4 << 20, MaxEntries: 3000}})
			var err error
			allocated := allocation.Of(func() { _, err = client.Archive(t.Context(), git.Remote{URL: url}, sha, io.Discard) })
			expectKind(t, err, tt.kind)
			g.Expect(allocated).To(BeNumerically("<", 16<<20), "bytes allocated")
		})
	}
}

func TestHostileAnswersAreBounded(t *testing.T) {
	sha := strings.Repeat("a", 40)
	for name, tt := range map[string]struct {
		answer func(w io.Writer)
		kind   git.Kind
	}{
		"endless pack": {func(w io.Writer) {
			fmt.Fprint(w, "00000008NAK\n")
			for band(w, 1, append([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01"), make([]byte, 60000)...)) == nil {
			}
		}, git.TooLarge},
		"endless progress": {func(w io.Writer) {
			fmt.Fprint(w, "00000008NAK\n")
			for band(w, 2, make([]byte, 60000)) == nil {
			}
		}, git.TooLarge},
		"endless shallow": {func(w io.Writer) {
			for {
				if _, err := fmt.Fprintf(w, "0035shallow %s\n", sha); err != nil {
					return
				}
			}
		}, git.TooLarge},
		"error in the band": {func(w io.Writer) {
			fmt.Fprint(w, "00000008NAK\n")
			_ = band(w, 3, []byte("fatal: "+canary+" \x1b[31m is your token"))
		}, git.Unreachable},
		"not our ref": {func(w io.Writer) {
			fmt.Fprintf(w, "%04xERR upload-pack: not our ref %s", 33+40, sha)
		}, git.RevisionNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			client := newClient(t, git.Options{Limits: archive.Limits{MaxDownloadSize: 4 << 20}, CheckoutTimeout: 20 * time.Second})
			remote := git.Remote{URL: hostileServer(t, sha, tt.answer), Auth: git.Auth{Token: canary}}
			message := checkoutFails(t, client, remote, sha, tt.kind).Message
			NewWithT(t).Expect(message).NotTo(ContainSubstring(canary))
			NewWithT(t).Expect(message).NotTo(ContainSubstring("\x1b"))
		})
	}
}

func TestRefsWithUnacceptableNamesAreIgnored(t *testing.T) {
	g := NewWithT(t)
	sha := strings.Repeat("a", 40)
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		fmt.Fprint(w, "001e# service=git-upload-pack\n0000")
		for _, name := range []string{"refs/heads/ok\x00", "refs/heads/a\x1b[31m", "refs/heads/../x", "not/refs", "refs/heads/main"} {
			fmt.Fprintf(w, "%04x%s %s\n", len(sha)+len(name)+6, sha, name)
		}
		fmt.Fprint(w, "0000")
	}))
	client := newClient(t, git.Options{})
	g.Expect(client.Resolve(t.Context(), git.Remote{URL: server.URL + "/repo"}, "main")).To(HaveField("SHA", sha))
	resolveFails(t, client, git.Remote{URL: server.URL + "/repo"}, "a\x1b[31m", git.RevisionNotFound)
}

func TestNothingOnTheMachineCanBeRead(t *testing.T) {
	g := NewWithT(t)
	o, _ := repository(t)
	client := newClient(t, git.Options{})
	for _, url := range []string{"file://" + o.bare, o.bare, "./repo", "../../etc", "file:" + o.bare, "localhost" + o.bare} {
		resolveFails(t, client, git.Remote{URL: url}, "main", git.InvalidURL)
		checkoutFails(t, client, git.Remote{URL: url}, strings.Repeat("1", 40), git.InvalidURL)
	}
	// The client uses neither the configuration nor the keys of a user: those in HOME would change the result.
	home := t.TempDir()
	t.Setenv("HOME", home)
	g.Expect(os.WriteFile(filepath.Join(home, ".gitconfig"), []byte("[url \"file://"+o.bare+"\"]\n\tinsteadOf = https://example.invalid/\n"), 0o600)).To(Succeed())
	resolveFails(t, client, git.Remote{URL: "https://example.invalid/repo"}, "main", git.Unreachable)
}
