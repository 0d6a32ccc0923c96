package git

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/stack-controller/stack-controller/internal/artifact/archive"
)

// repository is a remote repository that a call of Client is about.
type repository struct {
	client   *Client
	remote   Remote
	endpoint endpoint
	secrets  *secrets
	// limits are what is left of the client's: a checkout with submodules shares them.
	limits archive.Limits
}

// open checks the URL, and that the credentials are of use.
func (c *Client) open(remote Remote) (*repository, error) {
	e, err := parseEndpoint(remote.URL)
	if err != nil {
		return nil, err
	}
	r := &repository{client: c, remote: remote, endpoint: e, secrets: secretsOf(remote, e), limits: c.options.Limits}
	if err := r.checkCredentials(); err != nil {
		return nil, err
	}
	return r, nil
}

// checkCredentials finds credentials that cannot be used over the transport of the URL, which is a mistake of the user's that no
// server would explain.
func (r *repository) checkCredentials() error {
	auth := r.remote.Auth
	hasKey, hasToken, hasBasic := len(auth.PrivateKey) > 0, auth.Token != "" || auth.GitHubApp != nil, auth.Username != "" || auth.Password != ""
	if r.endpoint.scheme == schemeSSH {
		if hasToken && !hasKey && !hasBasic {
			return r.fail(InvalidCredentials, "a token cannot be used over ssh: use an https URL, or a private key")
		}
		return nil
	}
	if hasKey && !hasToken && !hasBasic && r.endpoint.password == "" {
		return r.fail(InvalidCredentials, "a private key cannot be used over %s: use an ssh URL, or a token", r.endpoint.scheme)
	}
	return nil
}

// session is one conversation with a server, by the protocol that gitprotocol-pack describes.
type session interface {
	// advertise gives what the server says first.
	advertise(ctx context.Context) (io.Reader, error)
	// request sends what the client wants, and gives the answer. It comes after advertise.
	request(ctx context.Context, wants []byte) (io.Reader, error)
	// explain tells why an answer ended too early, if the server has said so by another way. Otherwise it gives the error back.
	explain(err error) error
	// close ends the conversation.
	close()
}

// connect starts a conversation.
func (r *repository) connect(ctx context.Context) (session, error) {
	if r.endpoint.scheme == schemeSSH {
		return r.connectSSH(ctx)
	}
	return r.connectHTTP(ctx)
}

// advertised reads what the server says first.
func (r *repository) advertised(ctx context.Context, s session) (*advertisement, error) {
	const attempt = "list the references"
	body, err := s.advertise(ctx)
	if err != nil {
		return nil, r.failure(ctx, attempt, err)
	}
	list, err := readAdvertisement(&packetReader{source: &boundedReader{source: body, remaining: maxAdvertisement}})
	if err != nil {
		return nil, r.conversationFailure(ctx, attempt, s, err)
	}
	if list.objectFormat != "sha1" {
		return nil, r.fail(Other, "a repository with the hash function %s is not supported, only SHA-1", shorten(plain(list.objectFormat), 20))
	}
	return list, nil
}

// conversationFailure is failure for what happens in the middle of a conversation.
func (r *repository) conversationFailure(ctx context.Context, attempt string, s session, err error) error {
	if ctx.Err() == nil {
		err = s.explain(err)
	}
	var said serverError
	switch {
	case errors.As(err, &said):
		text := r.secrets.foreign(string(said))
		return r.fail(kindOfText(string(said), Unreachable), "%s: the server says: %s", attempt, strings.TrimPrefix(text, "ERROR: "))
	case errors.Is(err, errBodyTooLarge), errors.Is(err, errPackTooLarge):
		return r.fail(TooLarge, "%s: %s", attempt, err.Error())
	case errors.Is(err, errProtocol), errors.Is(err, errPack), errors.Is(err, errNoObject):
		if ctx.Err() == nil {
			return r.fail(Unreachable, "%s: %s", attempt, r.secrets.foreign(err.Error()))
		}
	}
	return r.failure(ctx, attempt, err)
}
