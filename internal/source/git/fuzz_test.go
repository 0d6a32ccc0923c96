package git

import (
	"bytes"
	"compress/zlib"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/crypto/ssh"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

// FuzzFetchAnswer checks that an answer with a packfile is read the same in whatever pieces it arrives, and fails only with known errors.
func FuzzFetchAnswer(f *testing.F) {
	sha := strings.Repeat("a1", 20)
	f.Add([]byte(packets("NAK", "\x01PACK", "\x02counting", "\x01more") + flushPacket))
	f.Add([]byte(packets("shallow "+sha) + flushPacket + packets("NAK", "\x03no space left")))
	f.Add([]byte(packets("shallow-info", "shallow "+sha) + delimiterPacket + packets("packfile", "\x01PACK") + flushPacket))
	f.Add([]byte(packets("ERR upload-pack: not our ref\x1b[31m")))
	f.Add([]byte("ffff"))
	f.Add([]byte("0004000300010000"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		read := func(source io.Reader) (string, error) {
			packets := &packetReader{source: source}
			if err := readToPackfile(packets); err != nil {
				return "", err
			}
			content, err := io.ReadAll(bounded(&sideband{packets: packets}, 1<<20))
			return string(content), err
		}
		whole, err := read(bytes.NewReader(answer))
		pieces, again := read(iotest.OneByteReader(bytes.NewReader(answer)))
		if whole != pieces || (err == nil) != (again == nil) || err != nil && err.Error() != again.Error() {
			t.Fatalf("in one piece %q, %v; in pieces %q, %v", whole, err, pieces, again)
		}
		if said := serverError(""); err != nil && !errors.Is(err, errProtocol) && !errors.Is(err, errBodyTooLarge) && !errors.As(err, &said) {
			t.Fatal(err)
		}
		if len(whole) > len(answer) {
			t.Fatalf("%d bytes became %d", len(answer), len(whole))
		}
	})
}

// packScript makes a packfile from a script, so that the fuzzer varies objects and deltas and not the checksums around them. An object
// begins with its type, how much its header lies about its size, how far its base is away, and the size of its content.
func packScript(script []byte) []byte {
	pack := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), 0)
	var offsets []int
	var last plumbing.Hash
	for len(script) >= 4 && len(offsets) < 100 {
		kind, lie, distance, size := plumbing.ObjectType(script[0]&7), script[1], int(script[2]), int(script[3])
		script = script[4:]
		content := script[:min(size, len(script))]
		script = script[len(content):]
		offsets = append(offsets, len(pack))
		stored := uint64(len(content)) + uint64(lie)*uint64(lie)<<(lie/8)
		first := byte(kind)<<4 | byte(stored&15)
		if stored >>= 4; stored > 0 {
			first |= 0x80
		}
		pack = append(pack, first)
		if stored > 0 {
			pack = binary.AppendUvarint(pack, stored)
		}
		switch kind {
		case plumbing.OFSDeltaObject:
			away := len(pack) - offsets[max(0, len(offsets)-1-distance%8)] - 1
			if away > 127 {
				pack = append(pack, byte((away>>7)-1)|0x80)
			}
			pack = append(pack, byte(away&0x7f))
		case plumbing.REFDeltaObject:
			pack = append(pack, last[:]...)
		default:
			last = plumbing.ComputeHash(kind, content)
		}
		var packed bytes.Buffer
		zip := zlib.NewWriter(&packed)
		_, _ = zip.Write(content)
		_ = zip.Close()
		pack = append(pack, packed.Bytes()...)
	}
	binary.BigEndian.PutUint32(pack[8:], uint32(len(offsets)))
	return pack
}

// FuzzPack checks that every object of an accepted packfile can be read, has the hash that is its name, and keeps to the limits.
func FuzzPack(f *testing.F) {
	object := func(kind plumbing.ObjectType, lie, distance byte, content string) string {
		return string([]byte{byte(kind), lie, distance, byte(len(content))}) + content
	}
	base, delta := strings.Repeat("base ", 20), "\x64\x64\x90\x64" // copies all of its 100 bytes
	f.Add([]byte(object(plumbing.BlobObject, 0, 0, base)), []byte{})
	f.Add([]byte(object(plumbing.BlobObject, 0, 0, base)+object(plumbing.OFSDeltaObject, 0, 1, delta)+object(plumbing.OFSDeltaObject, 0, 1, delta)), []byte{})
	f.Add([]byte(object(plumbing.BlobObject, 0, 0, base)+object(plumbing.REFDeltaObject, 0, 0, delta)), []byte("trailer"))
	f.Add([]byte(object(plumbing.BlobObject, 200, 0, base)+object(plumbing.OFSDeltaObject, 0, 0, "\xff\xff\xff\xff\x0f\xff\xff\xff\xff\x0f")), []byte{})
	f.Add([]byte{}, []byte("\x93\x00"))
	limits := packLimits{objects: 64, objectSize: 1 << 12, totalSize: 1 << 14}
	dir, budget := f.TempDir(), newMemory(archive.Limits{}.WithDefaults())
	f.Fuzz(func(t *testing.T, script, tail []byte) {
		name := filepath.Join(dir, "pack")
		if err := os.WriteFile(name, append(packScript(script), tail...), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		p, err := openPack(t.Context(), file, limits, budget)
		if err != nil {
			if !errors.Is(err, errPack) && !errors.Is(err, errPackTooLarge) {
				t.Fatal(err)
			}
			return
		}
		var total int64
		for n, object := range p.objects {
			content, err := p.read(t.Context(), int32(n))
			if err != nil {
				t.Fatalf("object %d: %v", n, err)
			}
			if total += int64(len(content)); int64(len(content)) != object.size || object.size > limits.objectSize || total > limits.totalSize {
				t.Fatalf("object %d has %d bytes, %d are declared, %d together", n, len(content), object.size, total)
			}
			if _, found := p.find(object.hash); !found || plumbing.ComputeHash(object.kind, content) != object.hash {
				t.Fatalf("object %d is not %s", n, object.hash)
			}
		}
	})
}

// FuzzModules checks that no URL in a .gitmodules file brings the credentials of a repository to another host.
func FuzzModules(f *testing.F) {
	parents := []Remote{
		{URL: "https://git.example.com/org/app", Auth: Auth{Username: "canary-user", Password: "canary-password"}},
		{URL: "https://canary-user:canary-password@git.example.com/org/app"},
		{URL: "ssh://git@git.example.com:2222/org/app", Auth: Auth{Username: "canary-user", Password: "canary-password"}},
		{URL: "http://git.example.com:8080/org/app", Auth: Auth{Token: "canary-token"}, ClientCert: []byte("canary-certificate")},
	}
	for _, url := range []string{
		"../lib", "./../../../../etc", "https://git.example.com/org/lib", "https://evil.example.com/x", "git@git.example.com:org/lib",
		"https://git.example.com@evil.example.com/x", "https://git.example.com.evil.example.com/x", "../../evil.example.com:x", "//evil.example.com/x",
		"https://GIT.EXAMPLE.COM:443/x", "http://git.example.com/x", "ext::sh -c id", "file:///etc", "-oProxyCommand=id:x", "../\\..\\evil", "..//evil.example.com/x",
		"./@evil.example.com/x", "../?x", "../#x", "../%2e%2e/%0a", "https://git.example.com\\@evil.example.com/x",
	} {
		f.Add([]byte("[submodule \"lib\"]\n\tpath = lib\n\turl = " + url + "\n"))
	}
	f.Add([]byte("\xef\xbb\xbf[submodule \"a\"]\npath = ../../x\nurl = \"../lib\\n\"\n[submodule \"a\"]\nurl=x"))
	f.Add([]byte("[submodule"))
	client := NewClient(Options{})
	f.Fuzz(func(t *testing.T, file []byte) {
		urls, err := parseModules(file)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || len(err.Error()) > maxMessage {
				t.Fatal(err)
			}
			return
		}
		for _, parent := range parents {
			r, err := client.open(parent)
			if err != nil {
				t.Fatal(err)
			}
			for _, url := range urls {
				remote, err := r.submoduleRemote(url)
				if err != nil {
					if strings.Contains(err.Error(), "canary") && !strings.Contains(url, "canary") || len(err.Error()) > maxMessage {
						t.Fatal(err)
					}
					continue
				}
				to, err := parseEndpoint(remote.URL)
				if err != nil {
					t.Fatalf("%q leads to %q: %v", url, remote.URL, err)
				}
				hasCredentials := remote.Auth.Username != "" || remote.Auth.Password != "" || remote.Auth.Token != "" || len(remote.ClientCert) > 0 ||
					strings.Contains(remote.URL, "canary") && !strings.Contains(url, "canary")
				if hasCredentials && (to.host != "git.example.com" || to.scheme == schemeHTTP && r.endpoint.scheme != schemeHTTP) {
					t.Fatalf("%q of %q takes credentials to %q", url, parent.URL, remote.URL)
				}
			}
		}
	})
}

// FuzzKnownHosts checks that a server is trusted only if its key is in the list.
func FuzzKnownHosts(f *testing.F) {
	public, err := ssh.NewPublicKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public())
	if err != nil {
		f.Fatal(err)
	}
	other, err := ssh.NewPublicKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize)).Public())
	if err != nil {
		f.Fatal(err)
	}
	line := string(ssh.MarshalAuthorizedKey(public))
	f.Add([]byte("git.example.com " + line))
	f.Add([]byte("[git.example.com]:22,* " + line))
	f.Add([]byte("!git.example.com,*.example.com " + line))
	f.Add([]byte("@revoked git.example.com " + line))
	f.Add([]byte("@cert-authority *.example.com " + line))
	f.Add([]byte("|1|aGVsbG8=|d29ybGQ= " + line))
	f.Add([]byte("git.example.com " + string(ssh.MarshalAuthorizedKey(other))))
	f.Add([]byte("@cert-authority"))
	f.Add([]byte("git.example.com ssh-ed25519 AAAA\n# comment\n\n\x00"))
	client := NewClient(Options{Dir: f.TempDir()})
	f.Fuzz(func(t *testing.T, list []byte) {
		r, err := client.open(Remote{URL: "ssh://git@git.example.com/org/app", KnownHosts: list})
		if err != nil {
			t.Fatal(err)
		}
		keys, err := r.hostKeys()
		if err == nil {
			keys.algorithms()
			err = keys.check("git.example.com:22", nil, public)
			if err == nil && !bytes.Contains(list, []byte(base64.StdEncoding.EncodeToString(public.Marshal()))) {
				t.Fatalf("trusted for %q", list)
			}
		}
		if typed := (*Error)(nil); err != nil && (!errors.As(err, &typed) || len(typed.Message) > maxMessage || strings.ContainsAny(typed.Message, "\n\x00")) {
			t.Fatal(err)
		}
	})
}

// FuzzHTTPAnswer checks that for any answer of a server the error is short and without secrets, and RetryAfter is bounded.
func FuzzHTTPAnswer(f *testing.F) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Add(429, "120", "0", "", "text/plain", []byte("slow down, canary-password"))
	f.Add(403, "", "0", "9223372036854775807", "text/plain; charset=utf-8", []byte("\x1b[31m\u202ecanary-password\n"))
	f.Add(503, "Sun, 01 Mar 2026 12:00:30 GMT", "", "", "text/html", []byte("<html>"))
	f.Add(429, "-9223372036854775808", "0", "-1", "", []byte{})
	f.Add(201, "", "", "", "application/json", []byte(`{"token": "ghs_x", "expires_at": "2026-03-01T13:00:00Z"}`))
	f.Add(201, "", "", "", "application/json", []byte(`{"token": "", "expires_at": "99999-03-01T13:00:00Z"}`))
	client := NewClient(Options{})
	f.Fuzz(func(t *testing.T, status int, after, remaining, reset, contentType string, body []byte) {
		r, err := client.open(Remote{URL: "https://git.example.com/org/app", Auth: Auth{Username: "git", Password: "canary-password"}})
		if err != nil {
			t.Fatal(err)
		}
		answer := func() *http.Response {
			response := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)),
				Request: &http.Request{Header: http.Header{"Authorization": {"Basic"}}}}
			response.Header.Set("Retry-After", after)
			response.Header.Set("X-RateLimit-Remaining", remaining)
			response.Header.Set("X-RateLimit-Reset", reset)
			response.Header.Set("Content-Type", contentType)
			return response
		}
		var token appToken
		for _, err := range []error{r.statusError(answer(), now), r.readAPI(t.Context(), answer(), now, &token)} {
			typed := (*Error)(nil)
			if err == nil {
				continue
			}
			if !errors.As(err, &typed) || typed.RetryAfter < 0 || typed.RetryAfter > maxRetryAfter {
				t.Fatalf("%v, after %s", err, typed.RetryAfter)
			}
			if m := typed.Message; len(m) > maxMessage || !utf8.ValidString(m) || strings.ContainsAny(m, "\n\r\x00\x1b") || strings.Contains(m, "canary-password") {
				t.Fatalf("%q", m)
			}
		}
	})
}
