package update

import (
	"errors"
	"slices"
	"time"

	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
)

// ends reports whether an Update that was deleted comes to an end, although its agent gives the same answer each time.
func ends(o *observation, d decision) bool {
	patience := *o
	for looks := 0; d.action == actionWait || d.action == actionWake; looks++ {
		if looks > 100 || patience.now.Sub(o.now) > unreachableAgentTimeout+time.Minute {
			return false
		}
		if patience.now = patience.now.Add(d.after); d.action == actionWake {
			patience.woken = &connection{}
		}
		d = decide(&patience)
	}
	return slices.Contains([]action{actionFinish, actionRecord, actionFinalize, actionCancel}, d.action)
}

// refused returns the names of the promises that are broken by the decisions on refusals of the agent.
func refused(o *observation) (promises []string) {
	for _, kind := range []error{client.ErrBusy, client.ErrNotFound, client.ErrUnavailable, client.ErrInvalid, client.ErrDigestMismatch, client.ErrTooLarge,
		client.ErrPulumiUnsupported, client.ErrDenied, client.ErrSourceMissing, agentruntime.ErrNoAgent, errors.New("disk")} {
		err := &client.Error{What: "call", Kind: kind, Message: "because"}
		start, delivery := decide(with(o, startFails(err))), decide(with(o, deliveryFails(err)))
		plan := decide(with(o, planDeliveryFails(err)))
		if plan.action == actionFinish != (errors.Is(kind, client.ErrInvalid) || errors.Is(kind, client.ErrTooLarge) || errors.Is(kind, client.ErrDigestMismatch)) {
			promises = append(promises, "only a plan that can never be carried out ends an Update")
		}
		if (start.action == actionFinish) != (errors.Is(kind, client.ErrInvalid) || errors.Is(kind, client.ErrTooLarge)) || delivery.action == actionFinish {
			promises = append(promises, "only a request that can never work ends an Update")
		}
		for _, d := range []decision{start, delivery, plan} {
			if d.action != actionFinish && (d.action != actionWait && d.action != actionDeliver || d.after <= 0 || d.after > longestWait || d.reason == "" || d.message == "") {
				promises = append(promises, "a refusal is tried again")
			}
		}
	}
	return promises
}
