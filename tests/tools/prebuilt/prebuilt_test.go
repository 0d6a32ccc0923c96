package prebuilt

import (
	"archive/tar"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestArchiveIsDownloadedOnce(t *testing.T) {
	g := NewWithT(t)
	h := newHost(t)
	f := newFinder(t, h.archive("etcd,kubectl", archived(t,
		member{name: "./bin/etcd", content: program(t)}, member{name: "bin/kubectl", content: program(t)}, member{name: "bin/more", content: "not wanted"})))

	paths, err := f.finder.Find(t.Context(), []string{"etcd", "kubectl"})
	g.Expect(err).NotTo(HaveOccurred())
	for _, name := range []string{"etcd", "kubectl"} {
		g.Expect(filepath.Base(paths[name])).To(Equal(name))
		info, err := os.Stat(paths[name])
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o755)))
	}
	g.Expect(kept(t)).To(ConsistOf("etcd", "kubectl"))
	g.Expect(f.lines.String()).To(MatchRegexp(`etcd, kubectl v1\.37\.0 +from example\.com in `))

	g.Expect(f.finder.Find(t.Context(), []string{"kubectl"})).To(HaveKeyWithValue("kubectl", paths["kubectl"]))
	g.Expect(h.count()).To(Equal(1))
	g.Expect(f.compiled).To(BeEmpty())
}

func TestProgramIsTakenOutOfAnImage(t *testing.T) {
	g := NewWithT(t)
	h := newHost(t)
	f := newFinder(t, h.image(t, "source-controller",
		archived(t, member{name: "etc/passwd", content: "root"}),
		archived(t, member{name: "usr/local/bin/source-controller", content: program(t)}),
		archived(t, member{name: "etc/group", content: "root"})))

	paths, err := f.finder.Find(t.Context(), []string{"source-controller"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f.compiled).To(BeEmpty(), f.lines.String())
	g.Expect(os.ReadFile(paths["source-controller"])).To(HaveLen(len(program(t))))
	g.Expect(kept(t)).To(ConsistOf("source-controller"))
}

func TestOnlyWhatWasVerifiedIsUnpacked(t *testing.T) {
	whole := archived(t, member{name: "bin/etcd", content: program(t)})
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	image := func(h *host, change func(path string, content []byte) []byte) string {
		pin := h.image(t, "etcd", archived(t, member{name: "usr/local/bin/etcd", content: program(t)}))
		for path, handler := range h.handlers {
			if path == "/token" {
				continue
			}
			h.handlers[path] = func(w http.ResponseWriter, r *http.Request) {
				handler(&changing{ResponseWriter: w, change: func(content []byte) []byte { return change(path, content) }}, r)
			}
		}
		return pin
	}
	for name, pins := range map[string]func(h *host) string{
		"another byte": func(h *host) string {
			pin := h.archive("etcd", whole)
			h.files["/example.com/etcd.tar.gz"] = flipped
			return pin
		},
		"a page of a captive portal": func(h *host) string {
			pin := h.archive("etcd", whole)
			h.files["/example.com/etcd.tar.gz"] = []byte("<html>Welcome to this hotel</html>")
			return pin
		},
		"another layer": func(h *host) string {
			return image(h, func(path string, content []byte) []byte {
				if strings.HasPrefix(path, "/elsewhere/") {
					return flipped
				}
				return content
			})
		},
		"another manifest": func(h *host) string {
			return image(h, func(path string, content []byte) []byte {
				if strings.Contains(path, "/manifests/") {
					return bytes.ReplaceAll(content, []byte("s390x"), []byte("s390y"))
				}
				return content
			})
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			g := NewWithT(t)
			f := newFinder(t, pins(newHost(t)))
			g.Expect(f.finder.Find(t.Context(), []string{"etcd"})).To(HaveKeyWithValue("etcd", "/compiled/etcd"))
			g.Expect(kept(t)).To(BeEmpty())
			g.Expect(f.lines.String()).To(MatchRegexp("has the digest sha256:[0-9a-f]{64}, not sha256:[0-9a-f]{64}: it was deleted, and nothing of it was unpacked or run"))
		})
	}
}

// changing changes what a handler writes at once.
type changing struct {
	http.ResponseWriter
	change func([]byte) []byte
}

func (c *changing) Write(content []byte) (int, error) {
	_, err := c.ResponseWriter.Write(c.change(content))
	return len(content), err
}

func TestHostileArchiveIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		members []member
		message string
	}{
		"outside":            {[]member{{name: "bin/../../../etcd", content: program(t)}}, "has no bin/etcd"},
		"a link":             {[]member{{name: "bin/etcd", kind: tar.TypeSymlink, content: "/bin/sh"}}, "is not a regular file"},
		"a hard link":        {[]member{{name: "bin/etcd", kind: tar.TypeLink, content: "/bin/sh"}}, "is not a regular file"},
		"twice":              {[]member{{name: "bin/etcd", content: program(t)}, {name: "bin/./etcd", content: program(t)}}, "twice"},
		"too large":          {[]member{{name: "bin/etcd", content: "x", size: maxProgram + 1}}, "more than 536870912"},
		"shorter":            {[]member{{name: "bin/etcd", content: "x", size: 100000}}, "unexpected EOF"},
		"another processor":  {[]member{{name: "bin/etcd", content: forAnotherProcessor(t)}}, "it is a program for EM_"},
		"a script":           {[]member{{name: "bin/etcd", content: "#!/bin/sh\nexit 0\n"}}, "is not a program for Linux"},
		"without the member": {[]member{{name: "bin/other", content: program(t)}}, "has no bin/etcd"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			g := NewWithT(t)
			h := newHost(t)
			f := newFinder(t, h.archive("etcd", archived(t, test.members...)))
			g.Expect(f.finder.Find(t.Context(), []string{"etcd"})).To(HaveKeyWithValue("etcd", "/compiled/etcd"))
			g.Expect(f.lines.String()).To(ContainSubstring(test.message))
			g.Expect(kept(t)).To(BeEmpty())
		})
	}
	t.Run("much_in_little", func(t *testing.T) {
		g := NewWithT(t)
		archive := archived(t, member{name: "zeros", content: strings.Repeat("\x00", 1<<20)}, member{name: "bin/etcd", content: "x"})
		_, err := unpack(bytes.NewReader(archive), map[string]string{"bin/etcd": filepath.Join(t.TempDir(), "etcd")}, 1<<19)
		g.Expect(err).To(MatchError(ContainSubstring("more than 524288 bytes")))
	})
	t.Run("another_version", func(t *testing.T) {
		g := NewWithT(t)
		h := newHost(t)
		f := newFinder(t, h.archive("kube-apiserver", archived(t, member{name: "bin/kube-apiserver", content: program(t)})))
		g.Expect(f.finder.Find(t.Context(), []string{"kube-apiserver"})).To(HaveKeyWithValue("kube-apiserver", "/compiled/kube-apiserver"))
		g.Expect(f.lines.String()).To(ContainSubstring("says that it is v1.36.0, not v1.37.0"))
		g.Expect(kept(t)).To(BeEmpty())
	})
}

func TestAnswerOfTheHostDecidesWhetherItIsAskedAgain(t *testing.T) {
	archive := archived(t, member{name: "bin/etcd", content: program(t)})
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	whole := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(archive) }
	half := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(archive)))
		_, _ = w.Write(archive[:len(archive)/2])
	}
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	stops := func(w http.ResponseWriter, r *http.Request) {
		half(w, r)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	elsewhere := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://example.com/etcd.tar.gz", http.StatusFound)
	}
	for name, test := range map[string]struct {
		answers  []http.HandlerFunc // in order; the last one again and again
		requests int
		message  string // empty if the tool is downloaded
	}{
		"not allowed":              {[]http.HandlerFunc{status(http.StatusForbidden)}, 1, "answers 403"},
		"not there":                {[]http.HandlerFunc{status(http.StatusNotFound)}, 1, "answers 404"},
		"too many requests once":   {[]http.HandlerFunc{status(http.StatusTooManyRequests), whole}, 2, ""},
		"an error twice":           {[]http.HandlerFunc{status(http.StatusBadGateway), status(http.StatusServiceUnavailable), whole}, 3, ""},
		"an error always":          {[]http.HandlerFunc{status(http.StatusBadGateway)}, 3, "answers 502"},
		"half of it once":          {[]http.HandlerFunc{half, whole}, 2, ""},
		"half of it always":        {[]http.HandlerFunc{half}, 3, "ended the connection"},
		"nothing":                  {[]http.HandlerFunc{silent}, 1, "does not answer"},
		"half of it, then nothing": {[]http.HandlerFunc{stops}, 1, "no more bytes came"},
		"redirect without https":   {[]http.HandlerFunc{elsewhere}, 1, "does not begin with https://"},
	} {
		t.Run(strings.NewReplacer(" ", "_", ",", "").Replace(name), func(t *testing.T) {
			g := NewWithT(t)
			h := newHost(t)
			pin := h.archive("etcd", archive)
			h.handlers["/example.com/etcd.tar.gz"] = func(w http.ResponseWriter, r *http.Request) {
				test.answers[min(h.count(), len(test.answers))-1](w, r)
			}
			f := newFinder(t, pin)
			paths, err := f.finder.Find(t.Context(), []string{"etcd"})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(h.count()).To(Equal(test.requests))
			if test.message == "" {
				g.Expect(paths["etcd"]).To(BeAnExistingFile(), f.lines.String())
				return
			}
			g.Expect(paths["etcd"]).To(Equal("/compiled/etcd"))
			g.Expect(f.lines.String()).To(ContainSubstring(test.message))
			g.Expect(kept(t)).To(BeEmpty())
		})
	}
}

func TestHostThatDoesNotAnswerIsAskedOnce(t *testing.T) {
	g := NewWithT(t)
	h := newHost(t)
	var pins string
	names := []string{"etcd", "ko", "helm", "vault", "crane", "minio", "coredns", "kubectl", "krew", "kubelet"}
	for _, name := range names {
		pins += h.archive(name, []byte(name))
		h.handlers["/example.com/"+name+".tar.gz"] = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	}
	f := newFinder(t, pins)
	start := time.Now()
	_, err := f.finder.Find(t.Context(), names)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(h.count()).To(BeNumerically("<=", atOnce))
	g.Expect(f.compiled).To(Equal(names))
	g.Expect(time.Since(start)).To(BeNumerically("<", time.Minute))
}

func TestWaysAreThoseOfTheUser(t *testing.T) {
	h := newHost(t)
	pin := h.archive("etcd", archived(t, member{name: "bin/etcd", content: program(t)}))
	t.Run("no_download", func(t *testing.T) {
		g := NewWithT(t)
		t.Setenv(WaysVariable, compile)
		g.Expect(newFinder(t, pin).finder.Find(t.Context(), []string{"etcd"})).To(HaveKeyWithValue("etcd", "/compiled/etcd"))
		g.Expect(h.count()).To(BeZero())
	})
	t.Run("no_build", func(t *testing.T) {
		g := NewWithT(t)
		t.Setenv(WaysVariable, download)
		f := newFinder(t, pin)
		_, err := f.finder.Find(t.Context(), []string{"etcd", "kubelet"})
		g.Expect(err).To(MatchError(And(ContainSubstring("no download of kubelet is known"), ContainSubstring("kubelet cannot be had by download"))))
		g.Expect(f.compiled).To(BeEmpty())
	})
	t.Run("unknown", func(t *testing.T) {
		g := NewWithT(t)
		t.Setenv(WaysVariable, "download,docker")
		_, err := New("", nil, nil)
		g.Expect(err).To(MatchError(ContainSubstring(`"docker"`)))
	})
	t.Run("named_by_the_user", func(t *testing.T) {
		g := NewWithT(t)
		f := newFinder(t, pin)
		t.Setenv("TEST_ASSET_ETCD", "/mine/etcd")
		g.Expect(f.finder.Find(t.Context(), []string{"etcd"})).To(HaveKeyWithValue("etcd", "/mine/etcd"))
	})
	t.Run("assets_of_another_project", func(t *testing.T) {
		g := NewWithT(t)
		f := newFinder(t, pin)
		assets := t.TempDir()
		g.Expect(os.WriteFile(filepath.Join(assets, "kube-apiserver"), []byte("#!/bin/sh\necho Kubernetes v1.20.0\n"), 0o700)).To(Succeed())
		t.Setenv("KUBEBUILDER_ASSETS", assets)
		g.Expect(f.finder.Find(t.Context(), []string{"kube-apiserver"})).To(HaveKeyWithValue("kube-apiserver", "/compiled/kube-apiserver"))
		g.Expect(f.lines.String()).To(ContainSubstring("passed over: kube-apiserver is v1.20.0"))
	})
	t.Run("mirror_without_https", func(t *testing.T) {
		_, err := newFetcher("http://mirror.example.com/", defaultLimits)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("must begin with https:// or file://")))
	})
}

func TestMirrorCanBeADirectory(t *testing.T) {
	g := NewWithT(t)
	h := newHost(t)
	pin := h.archive("etcd", archived(t, member{name: "bin/etcd", content: program(t)}))
	mirror := t.TempDir()
	g.Expect(os.Mkdir(filepath.Join(mirror, "example.com"), 0o700)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(mirror, "example.com", "etcd.tar.gz"), h.files["/example.com/etcd.tar.gz"], 0o600)).To(Succeed())
	t.Setenv(MirrorVariable, "file://"+mirror)
	f := newFinder(t, pin)
	paths, err := f.finder.Find(t.Context(), []string{"etcd"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(paths["etcd"]).To(BeAnExistingFile(), f.lines.String())
	g.Expect(h.count()).To(BeZero())
}

func TestTwoProcessesDownloadOnce(t *testing.T) {
	g := NewWithT(t)
	h := newHost(t)
	first := newFinder(t, h.archive("etcd", archived(t, member{name: "bin/etcd", content: program(t)})))
	second := &Finder{pins: first.finder.pins, ways: first.finder.ways, fetcher: first.finder.fetcher, progress: first.finder.progress}
	var group sync.WaitGroup
	for _, finder := range []*Finder{first.finder, second} {
		group.Go(func() {
			_, err := finder.Find(t.Context(), []string{"etcd"})
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
	group.Wait()
	g.Expect(h.count()).To(Equal(1))
}

func TestDownloadAfterAKilledOneIsWhole(t *testing.T) {
	whole := headerOfProgram(t)
	archive := archived(t, member{name: "bin/etcd", content: whole}, member{name: "bin/ko", content: whole})
	half := archive[:len(archive)/2]
	for name, left := range map[string]map[string]string{
		"before the first byte":          {},
		"half of the archive":            {".download-1": string(half)},
		"all of it, not verified":        {".download-1": string(archive)},
		"half of a program":              {".download-1": string(archive), "etcd": whole[:len(whole)/2]},
		"one program of two":             {".download-1": string(archive), "etcd": whole},
		"unpacked, not checked":          {"etcd": whole, "ko": "#!/bin/sh\n"},
		"checked, not in its place":      {"etcd": whole, "ko": whole},
		"several downloads that stopped": {".download-1": string(half), ".download-2": string(half)},
	} {
		t.Run(strings.NewReplacer(" ", "_", ",", "").Replace(name), func(t *testing.T) {
			g := NewWithT(t)
			h := newHost(t)
			f := newFinder(t, h.archive("etcd,ko", archive))
			dir, err := f.finder.pins[0].directory()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(os.MkdirAll(dir+".new", 0o700)).To(Succeed())
			g.Expect(os.WriteFile(dir+".lock", nil, 0o600)).To(Succeed()) // the kernel released it
			for file, content := range left {
				g.Expect(os.WriteFile(filepath.Join(dir+".new", file), []byte(content), 0o700)).To(Succeed())
			}
			paths, err := f.finder.Find(t.Context(), []string{"etcd", "ko"})
			g.Expect(err).NotTo(HaveOccurred())
			for _, path := range paths {
				g.Expect(os.ReadFile(path)).To(BeEquivalentTo(whole), f.lines.String())
			}
			g.Expect(h.count()).To(Equal(1), "what was left is not used")
			g.Expect(kept(t)).To(ConsistOf("etcd", "ko"))
			g.Expect(dir + ".new").NotTo(BeADirectory())
		})
	}
	t.Run("in_its_place_not_reported", func(t *testing.T) {
		g := NewWithT(t)
		h := newHost(t)
		f := newFinder(t, h.archive("etcd", archive))
		dir, err := f.finder.pins[0].directory()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.MkdirAll(dir, 0o700)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(dir, "etcd"), []byte(whole), 0o700)).To(Succeed())
		g.Expect(f.finder.Find(t.Context(), []string{"etcd"})).To(HaveKeyWithValue("etcd", filepath.Join(dir, "etcd")))
		g.Expect(h.count()).To(BeZero())
	})
}

func TestProgramsOnPathAreUsedIfTheyWillDo(t *testing.T) {
	prints := func(version string) string { return "#!/bin/sh\necho " + version + "\n" }
	for name, test := range map[string]struct {
		pulumi  string
		alone   bool   // without the language host
		message string // empty if it is used
	}{
		"in between":       {pulumi: prints("v3.150.0")},
		"newer than ours":  {pulumi: prints("v3.999.0")},
		"too old":          {pulumi: prints("v3.99.0"), message: "is not between v3.100.0"},
		"next major":       {pulumi: prints("v4.0.0"), message: "is not between v3.100.0"},
		"no version":       {pulumi: prints("hello"), message: "does not say its version"},
		"hangs":            {pulumi: "#!/bin/sh\nexec sleep 60\n", message: "ask "},
		"needs its home":   {pulumi: "#!/bin/sh\n[ -e \"$HOME/.shims\" ] && echo v3.150.0\n", message: "ask "},
		"no language host": {pulumi: prints("v3.150.0"), alone: true, message: "has no pulumi-language-yaml beside it"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			g.Expect(os.WriteFile(filepath.Join(dir, "pulumi"), []byte(test.pulumi), 0o700)).To(Succeed())
			if !test.alone {
				g.Expect(os.WriteFile(filepath.Join(dir, languageHost), []byte(prints("")), 0o700)).To(Succeed())
			}
			g.Expect(os.WriteFile(filepath.Join(dir, "kubectl"), []byte(prints("Client Version: v1.30.0")), 0o700)).To(Succeed())
			t.Setenv("PATH", dir+":/usr/bin:/bin")
			t.Setenv(WaysVariable, onPath+","+compile)
			f := newFinder(t, "")
			paths, err := f.finder.Find(t.Context(), []string{"pulumi", languageHost, "kubectl"})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(paths["kubectl"]).To(Equal("/compiled/kubectl"))
			g.Expect(f.lines.String()).To(ContainSubstring("v1.30.0 is more than one minor version away"))
			if test.message != "" {
				g.Expect(f.lines.String()).To(ContainSubstring(test.message))
				g.Expect(paths["pulumi"]).To(Equal("/compiled/pulumi"))
				return
			}
			g.Expect(paths["pulumi"]).To(Equal(filepath.Join(dir, "pulumi")), f.lines.String())
			g.Expect(paths[languageHost]).To(Equal(filepath.Join(dir, languageHost)))
		})
	}
}
