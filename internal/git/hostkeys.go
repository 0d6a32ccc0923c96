package git

import (
	"errors"
	"net"
	"os"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"
)

// maxKnownHosts bounds a list of known hosts in bytes.
const maxKnownHosts = 1 << 20

// hostKeys decides whether to trust an ssh server. The remote's own list counts if it has the host, otherwise the controller's.
// There is no way to trust a host that neither has.
type hostKeys struct {
	repository *repository
	lists      []*knownhosts.HostKeyDB
	// refusal is why the key that the server showed was refused.
	refusal *Error
}

func (r *repository) hostKeys() (*hostKeys, error) {
	keys := &hostKeys{repository: r}
	for _, list := range [][]byte{r.remote.KnownHosts, r.client.options.KnownHosts} {
		if len(list) == 0 {
			continue
		}
		parsed, err := r.parseKnownHosts(list)
		if err != nil {
			return nil, err
		}
		keys.lists = append(keys.lists, parsed)
	}
	return keys, nil
}

// parseKnownHosts goes through a file, because the library reads nothing else.
func (r *repository) parseKnownHosts(list []byte) (*knownhosts.HostKeyDB, error) {
	if len(list) > maxKnownHosts {
		return nil, r.fail(InvalidCredentials, "the known hosts have more than %d bytes", maxKnownHosts)
	}
	file, err := os.CreateTemp(r.client.options.Dir, "known-hosts-")
	if err != nil {
		return nil, r.fail(Other, "read the known hosts: no file on the controller's disk: %s", innermost(err))
	}
	defer os.Remove(file.Name())
	_, err = file.Write(list)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, r.fail(Other, "read the known hosts: no space on the controller's disk")
	}
	parsed, err := knownhosts.NewDB(file.Name())
	if err != nil {
		return nil, r.fail(InvalidCredentials, "the known hosts cannot be parsed: they must have the format of OpenSSH, as ssh-keyscan writes it")
	}
	return parsed, nil
}

// algorithms are those of the keys that are known, so that the server shows one of them and not a key of another type. Without
// any, the server's choice is good for the message.
func (k *hostKeys) algorithms() []string {
	for _, list := range k.lists {
		if algorithms := list.HostKeyAlgorithms(k.repository.endpoint.address()); len(algorithms) > 0 {
			return algorithms
		}
	}
	return nil
}

// check is an ssh.HostKeyCallback.
func (k *hostKeys) check(address string, _ net.Addr, key ssh.PublicKey) error {
	r := k.repository
	shown := key.Type() + " " + ssh.FingerprintSHA256(key)
	// The address of the connection is of no importance, and behind a proxy it is the proxy's.
	remote := &net.TCPAddr{IP: net.IPv4zero}
	for _, list := range k.lists {
		err := list.HostKeyCallback()(address, remote, key)
		var mismatch *xknownhosts.KeyError
		var revoked *xknownhosts.RevokedError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &revoked):
			k.refusal = r.fail(HostKeyUnknown, "the server's host key %s is marked as revoked in the known hosts", shown)
			return k.refusal
		case errors.As(err, &mismatch) && len(mismatch.Want) == 0:
			continue // this list does not have the host
		}
		k.refusal = r.fail(HostKeyUnknown, "host key mismatch: the server shows %s, but the known hosts have another key for %s; somebody may "+
			"be in between, or the server has a new key: compare it with what its operator publishes, then change the known hosts",
			shown, plain(address))
		return k.refusal
	}
	k.refusal = r.fail(HostKeyUnknown, "the known hosts have no key for %s, which shows %s: compare it with what its operator "+
		"publishes, then add it to the known hosts (ssh-keyscan prints the line)", plain(address), shown)
	return k.refusal
}
