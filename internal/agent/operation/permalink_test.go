package operation

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/state"
)

func TestPermalinkIsFoundInEachFormThatTheCLIPrints(t *testing.T) {
	const page = "https://app.pulumi.com/acme/app/dev/updates/7"
	for line, found := range map[string]string{
		"View Live: " + page:                       page,
		"View in Browser (Ctrl+O): " + page:        page,
		"  View in Browser: " + page + " (opened)": page,
		"Permalink: " + page:                       page,
		"Permalink: file:///state":                 "",
		// Names that are also secrets.
		"View Live: https://app.pulumi.com/acme/[secret]/de[secret]/updates/7": page,
		"View Live: https://[secret]/pulumi/acme/app/[secret]/previews/0b-7f":  "https://[secret]/pulumi/acme/app/dev/previews/0b-7f",
		"View Live: https://app.pulumi.com/[secret]/app/dev/updates/7":         "https://app.pulumi.com/[secret]/app/dev/updates/7",
		"View Live: https://app.pulumi.com/acme/app/dev/updates/[secret]":      "https://app.pulumi.com/acme/app/dev/updates/[secret]",
		"View Live: https://app.pulumi.com/acme/app/dev/[secret]/7":            "https://app.pulumi.com/acme/app/dev/[secret]/7",
		"View Live: https://[secret]/7":                                        "https://[secret]/7",
		"View it live: " + page:                                                "",
	} {
		o := &operation{report: &reporter{operation: &agentpb.Operation{}}}
		o.project, o.stack = &project{Name: "app"}, &state.Stack{Name: "dev"}
		o.findPermalink(line)
		NewWithT(t).Expect(o.report.operation.GetPermalink()).To(Equal(found), line)
	}
	for _, name := range []string{"acme/dev", "acme/app/dev"} {
		o := &operation{}
		o.project, o.stack = &project{Name: "app"}, &state.Stack{Name: name}
		NewWithT(t).Expect(o.withNames("https://app.pulumi.com/[secret]/[secret]/[secret]/updates/7")).To(Equal(page), name)
	}
}
