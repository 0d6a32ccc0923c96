package pod

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// closeGrace is how long a connection stays open after its pod is gone, so that who watches an operation gets what the agent
// sent last.
const closeGrace = 30 * time.Second

// connections are the connections to agents, at most one for each workspace. Everybody shares it.
type connections struct {
	mu   sync.Mutex
	open map[types.NamespacedName]*connection
}

// connection is one to the agent in a pod.
type connection struct {
	// workspace is the one that the pod was found to belong to.
	workspace, pod types.UID
	// address has the IP of the pod, which changes when its node starts again.
	address string
	// certificate is the fingerprint of the one that the agent has to have.
	certificate string
	client      *client.Client
}

func newConnections() *connections {
	return &connections{open: map[types.NamespacedName]*connection{}}
}

// knows tells whether there is a connection to the pod, as one of this Workspace.
func (c *connections) knows(key types.NamespacedName, workspace, pod types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[key]
	return known != nil && known.workspace == workspace && known.pod == pod
}

// get returns the connection to the pod, or nil.
func (c *connections) get(key types.NamespacedName, pod types.UID, address string) *client.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.open[key]; known != nil && known.pod == pod && known.address == address {
		return known.client
	}
	return nil
}

// goesBy tells whether the connection to the pod, if there is one, goes by the certificate.
func (c *connections) goesBy(key types.NamespacedName, pod types.UID, certificate string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[key]
	return known == nil || known.pod != pod || known.certificate == certificate
}

// put keeps a new connection in place of the one there was, and returns the one to use: somebody else may have been
// faster.
func (c *connections) put(key types.NamespacedName, opened connection) *client.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[key]
	if known != nil && known.pod == opened.pod && known.address == opened.address && known.certificate == opened.certificate {
		closeLater(opened.client, 0)
		return known.client
	}
	if known != nil {
		closeLater(known.client, closeGrace)
	}
	c.open[key] = &opened
	return opened.client
}

// drop lets go of the connection to the pod; with an empty UID, of the one to any pod of the workspace.
func (c *connections) drop(key types.NamespacedName, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[key]
	if known == nil || pod != "" && known.pod != pod {
		return
	}
	delete(c.open, key)
	closeLater(known.client, closeGrace)
}

// closeAll ends all connections.
func (c *connections) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, known := range c.open {
		closeLater(known.client, 0)
	}
	clear(c.open)
}

// closeLater closes the connection after the time. Nothing can be done about an error, and nothing depends on it.
func closeLater(connection *client.Client, after time.Duration) {
	if after == 0 {
		_ = connection.Close()
		return
	}
	time.AfterFunc(after, func() { _ = connection.Close() })
}
