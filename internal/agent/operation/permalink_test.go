package operation

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func TestPermalinkIsFoundInEachFormThatTheCLIPrints(t *testing.T) {
	const page = "https://app.pulumi.com/acme/app/dev/updates/7"
	for line, found := range map[string]string{
		"View Live: " + page:                       page,
		"View in Browser (Ctrl+O): " + page:        page,
		"  View in Browser: " + page + " (opened)": page,
		"Permalink: " + page:                       page,
		"Permalink: file:///state":                 "",
		"View it live: " + page:                    "",
	} {
		o := &operation{report: &reporter{operation: &agentpb.Operation{}}}
		o.findPermalink(line)
		NewWithT(t).Expect(o.report.operation.GetPermalink()).To(Equal(found), line)
	}
}
