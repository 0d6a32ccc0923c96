package git

import (
	"context"
	"crypto/x509"
	"net"
	"time"
)

// TakeMemory takes the whole memory budget of the client, as other checkouts might, until release is called.
func (c *Client) TakeMemory(ctx context.Context) (release func(), err error) {
	working, err := c.memory.work(ctx, workingMemory)
	if err != nil {
		return nil, err
	}
	held := c.memory.newClaim("")
	if err := held.hold(ctx, heldMemory/objectMemory, 0); err != nil {
		working()
		return nil, err
	}
	return func() { held.release(); working() }, nil
}

// Expect sets after which window and preparation time the client gives up on a slow server.
func (c *Client) Expect(window, preparation time.Duration) {
	c.window, c.preparation = window, preparation
}

// DialHTTP replaces how connections over HTTP are made.
func (c *Client) DialHTTP(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	c.transport.DialContext = dial
}

// TrustHTTP sets the authorities that are trusted over https.
func (c *Client) TrustHTTP(authorities *x509.CertPool) {
	c.transport.TLSClientConfig.RootCAs = authorities
}

// ExpectTokens sets how old a token of a GitHub App is when all servers know it, and the times between the attempts with a younger one.
func (c *Client) ExpectTokens(settling time.Duration, waits ...time.Duration) {
	c.tokenSettling, c.tokenWaits = settling, waits
}
