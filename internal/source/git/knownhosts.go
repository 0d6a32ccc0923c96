package git

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // the format of OpenSSH has no other hash
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Tenants write known hosts, which are read for each connection. golang.org/x/crypto/ssh/knownhosts reads them from files only, parses the
// keys of all hosts, and the time that it takes for a pattern is exponential in the number of asterisks. The functions of this file take time
// in proportion to the size of the list.
const (
	// maxKnownHosts bounds a list of known hosts in bytes.
	maxKnownHosts = 1 << 20
	// maxHostKeys bounds how many keys of one server are in a list.
	maxHostKeys = 100
)

var (
	errKnownHosts   = errors.New("not in the format of OpenSSH")
	errManyHostKeys = errors.New("too many keys of one server")
)

// knownHost is what a list of known hosts says about one server.
type knownHost struct {
	// keys are host keys, authorities are keys that sign certificates of hosts.
	keys, authorities []ssh.PublicKey
	// revoked are the keys, of any server, that must not be used.
	revoked map[string]bool
}

// isKnown reports whether the list has a key for the server.
func (k *knownHost) isKnown() bool { return len(k.keys)+len(k.authorities) > 0 }

// isRevoked reports whether the key, or the one that signed it, is revoked.
func (k *knownHost) isRevoked(key ssh.PublicKey) bool {
	certificate, ok := key.(*ssh.Certificate)
	return k.revoked[string(key.Marshal())] || ok && k.revoked[string(certificate.SignatureKey.Marshal())]
}

// trusts reports whether the server at the address may have the key.
func (k *knownHost) trusts(address string, key ssh.PublicKey) bool {
	if _, ok := key.(*ssh.Certificate); ok {
		checker := ssh.CertChecker{IsHostAuthority: func(authority ssh.PublicKey, _ string) bool { return hasKey(k.authorities, authority) }}
		return checker.CheckHostKey(address, nil, key) == nil
	}
	return hasKey(k.keys, key)
}

func hasKey(keys []ssh.PublicKey, key ssh.PublicKey) bool {
	return slices.ContainsFunc(keys, func(known ssh.PublicKey) bool { return bytes.Equal(known.Marshal(), key.Marshal()) })
}

// certificates are the algorithms of certificates of servers.
var certificates = append(slices.DeleteFunc(ssh.SupportedAlgorithms().HostKeys, func(name string) bool {
	return !strings.HasSuffix(name, "-cert-v01@openssh.com")
}), ssh.CertAlgoRSAv01)

// algorithms returns the algorithms for the keys, each once.
func (k *knownHost) algorithms() (found []string) {
	for _, key := range k.keys {
		algorithms := []string{key.Type()}
		if key.Type() == ssh.KeyAlgoRSA {
			algorithms = []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA}
		}
		for _, algorithm := range algorithms {
			if !slices.Contains(found, algorithm) {
				found = append(found, algorithm)
			}
		}
	}
	if len(k.authorities) > 0 { // the key of a server may be of another type than the one that certifies it
		found = append(found, certificates...)
	}
	return found
}

// findHost returns what the list says about the server. As with OpenSSH, patterns without a port also apply to other ports, unless the list
// has the server with its port.
func findHost(list []byte, host, port string) (*knownHost, error) {
	return (&hostFinder{name: newNameMatcher(host), host: host, port: port}).find(list)
}

// hostFinder looks for one server.
type hostFinder struct {
	name       *nameMatcher
	host, port string
	// hashes is how many hashed names were compared.
	hashes int
}

// hostKey is a key that was not parsed.
type hostKey struct {
	key         []byte
	isAuthority bool
}

func (f *hostFinder) find(list []byte) (*knownHost, error) {
	found := &knownHost{revoked: map[string]bool{}}
	var keys, withoutPort []hostKey
	for line := range bytes.Lines(list) {
		marker, hosts, key, err := parseKnownHost(line)
		switch {
		case err != nil:
			return nil, err
		case key == nil:
			continue
		case marker == "@revoked":
			found.revoked[string(key)] = true
			continue
		}
		matches, matchesWithoutPort, err := f.matches(hosts)
		switch {
		case err != nil:
			return nil, err
		case matches:
			keys = append(keys, hostKey{key, marker != ""})
		case matchesWithoutPort:
			withoutPort = append(withoutPort, hostKey{key, marker != ""})
		}
	}
	if len(keys) == 0 {
		keys = withoutPort
	}
	if len(keys) > maxHostKeys {
		return nil, errManyHostKeys
	}
	for _, key := range keys {
		parsed, err := ssh.ParsePublicKey(key.key)
		if err != nil {
			return nil, errKnownHosts
		}
		if key.isAuthority {
			found.authorities = append(found.authorities, parsed)
		} else {
			found.keys = append(found.keys, parsed)
		}
	}
	return found, nil
}

// parseKnownHost parses a line: a marker that may be missing, hosts, the type of the key, the key, and a comment. The key of an empty line
// is nil. Of a key only the type is checked.
func parseKnownHost(line []byte) (marker string, hosts, key []byte, err error) {
	hosts, rest := nextWord(bytes.TrimRight(line, "\r\n"))
	if len(hosts) == 0 || hosts[0] == '#' {
		return "", nil, nil, nil
	}
	if hosts[0] == '@' {
		marker = string(hosts)
		hosts, rest = nextWord(rest)
		if marker != "@revoked" && marker != "@cert-authority" {
			return "", nil, nil, errKnownHosts
		}
	}
	kind, rest := nextWord(rest)
	encoded, _ := nextWord(rest)
	key, err = base64.StdEncoding.AppendDecode(nil, encoded)
	if err != nil || len(kind) == 0 || hosts[0] == '@' {
		return "", nil, nil, errKnownHosts
	}
	if prefix := append(binary.BigEndian.AppendUint32(nil, uint32(len(kind))), kind...); !bytes.HasPrefix(key, prefix) { //nolint:gosec // the list is small
		return "", nil, nil, errKnownHosts
	}
	return marker, hosts, key, nil
}

// nextWord cuts off the first word.
func nextWord(line []byte) (word, rest []byte) {
	line = bytes.TrimLeft(line, " \t")
	if end := bytes.IndexAny(line, " \t"); end >= 0 {
		return line[:end], line[end:]
	}
	return line, nil
}

// matches reports whether the hosts of a line have the server, and whether they have a pattern for it without a port.
func (f *hostFinder) matches(hosts []byte) (matches, withoutPort bool, err error) {
	if hosts[0] == '|' {
		matches, err = f.matchesHash(string(hosts))
		return matches, false, err
	}
	asterisk := bytes.IndexByte(hosts, '*')
	// Patterns with a port do not apply to other ports.
	forAllPorts := asterisk >= 0 && !bytes.Contains(hosts[asterisk:], []byte("]:"))
	var excluded, excludedWithoutPort bool
	// As with OpenSSH, the case of a name does not matter. The name of the server is in lower case.
	for pattern := range strings.SplitSeq(strings.ToLower(string(hosts)), ",") {
		if pattern == "" {
			continue
		}
		pattern, negated := strings.CutPrefix(pattern, "!")
		host, port, err := net.SplitHostPort(pattern)
		switch {
		case err != nil && (pattern == "" || pattern[0] == '['):
			return false, false, errKnownHosts
		case err != nil:
			host, port = pattern, defaultSSHPort
		}
		if !f.name.matches(host) {
			continue
		}
		same, other := port == f.port, port == defaultSSHPort && forAllPorts
		matches, withoutPort = matches || same, withoutPort || other
		excluded, excludedWithoutPort = excluded || same && negated, excludedWithoutPort || other && negated
	}
	return matches && !excluded, withoutPort && !excludedWithoutPort, nil
}

const defaultSSHPort = "22"

// matchesHash compares the server with a hashed name.
func (f *hostFinder) matchesHash(hashed string) (bool, error) {
	parts := strings.Split(hashed, "|")
	if len(parts) != 4 || parts[1] != "1" {
		return false, errKnownHosts
	}
	salt, saltErr := base64.StdEncoding.DecodeString(parts[2])
	hash, hashErr := base64.StdEncoding.DecodeString(parts[3])
	if saltErr != nil || hashErr != nil || len(salt) != sha1.Size || len(hash) != sha1.Size {
		return false, errKnownHosts
	}
	f.hashes++
	name := f.host
	if f.port != defaultSSHPort {
		name = "[" + f.host + "]:" + f.port
	}
	mac := hmac.New(sha1.New, salt)
	mac.Write([]byte(name))
	return bytes.Equal(mac.Sum(nil), hash), nil
}

// nameMatcher matches one name with patterns, in which an asterisk stands for any text and a question mark for any character. It never goes
// back: for each character of a pattern it computes, at once, at which positions of the name the pattern may have arrived.
type nameMatcher struct {
	length int
	// at has the positions of each character of the name, any those of all characters.
	at  [256]positions
	any positions
	// steps is how many characters of patterns were looked at.
	steps int
}

// positions is a set of numbers from 0 to 255, one bit for each.
type positions [4]uint64

func newNameMatcher(name string) *nameMatcher {
	m := &nameMatcher{length: len(name)}
	for i := range min(len(name), maxHost) {
		bit := uint64(1) << (i % 64)
		m.at[name[i]][i/64] |= bit
		m.any[i/64] |= bit
	}
	return m
}

func (m *nameMatcher) matches(pattern string) bool {
	if m.length > maxHost {
		return false
	}
	reached := positions{1}
	for i := range len(pattern) {
		m.steps++
		switch pattern[i] {
		case '*':
			reached = reached.andAfter()
		case '?':
			reached = reached.next(m.any)
		default:
			reached = reached.next(m.at[pattern[i]])
		}
		if reached == (positions{}) {
			return false
		}
	}
	return reached[m.length/64]>>(m.length%64)&1 == 1
}

// next returns the positions after those that are also in the other set.
func (p positions) next(of positions) (next positions) {
	var carry uint64
	for i := range p {
		both := p[i] & of[i]
		next[i], carry = both<<1|carry, both>>63
	}
	return next
}

// andAfter returns the positions and all after them.
func (p positions) andAfter() positions {
	for i, carry := 0, uint64(0); i < len(p); i++ {
		// The negative of a number has all bits above its lowest one that the number does not have.
		if p[i] |= -p[i] | carry; p[i] != 0 {
			carry = ^uint64(0)
		}
	}
	return p
}
