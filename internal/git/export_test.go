package git

import "context"

// TakeMemory takes the whole budget of the client, as other checkouts might, until it is given back.
func (c *Client) TakeMemory(ctx context.Context) (release func(), err error) {
	working, err := c.memory.work(ctx, workingMemory)
	if err != nil {
		return nil, err
	}
	held := c.memory.claim()
	if err := held.hold(ctx, heldMemory/objectMemory, 0); err != nil {
		working()
		return nil, err
	}
	return func() { held.release(); working() }, nil
}
