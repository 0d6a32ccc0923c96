// Package security_test generates docs/security.md from page.tmpl, the promises below, the attacks on each promise, which it reads from the
// tables of tests/e2e/tenancy, and the limits in limits_test.go. It checks that every promise is attacked, that every named test exists, and that
// the limits are those of the code.
package security_test

import (
	_ "embed"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/template"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/contract/pages"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// promise is what a tenant can rely on.
type promise struct {
	// name is the name by which attacks refer to the promise.
	name string
	// title is a sentence, and text explains how the promise is kept.
	title, text string
	// proofs are tests in other packages, "package.Test", or "package.Test/subtest".
	proofs []string
}

// promises lists all promises in the order of the page.
var promises = []promise{
	{
		name: "sources", title: "A tenant runs only sources that its namespace can use",
		text: `The controller fetches and delivers an artifact for a source object that the Stack is allowed to use and that
publishes the artifact. It does not hand out the artifact of one source for another source, even to someone who knows
the digest. A URL that a tenant writes into a Workspace, a template or an Update is fetched by the workspace pod, with
the network and identity of that pod, or not at all. The digest of rejected content is only in the log of the
controller.`,
		proofs: []string{
			"artifact.TestKnowingADigestGivesNobodyTheContentOfAnotherSource", "artifact.TestDigestOfContentThatWasRefusedIsInTheLogOnly",
			"artifact.TestRedirectToAnotherHostIsRefusedBeforeAByteIsSent", "source.TestSourceIsBelievedForItsOwnArtifactsOnly",
			"update.TestUpdateThatKnowsADigestDoesNotGetTheArtifactOfAnotherSource", "update.TestDigestOfWhatAURLHasIsNotRevealed",
		},
	},
	{
		name: "references", title: "References stay in their namespace",
		text: `The controller looks up sources, dependencies, prerequisites, Programs, Secrets and ConfigMaps in the namespace of the
Stack. With ` + "`--no-cross-namespace-refs=false`" + `, sources and dependencies can be in other namespaces. Dependencies
on other kinds than Stacks are of kinds that ` + "`--dependency-kinds`" + ` lists, never Secrets or roles. A refusal does not say whether the
object exists. Of an object that is allowed, a Stack shows whether it exists and is ready, and a ` + "`readyExpr`" + ` sees its labels and
its conditions without their messages, also for who may not read it. Names are never
used as paths, and objects cannot refer to files and environment variables of the controller.`,
		proofs: []string{
			"e2e.TestStackSaysWhatIsWrongWithItsSource/other-namespace", "e2e.TestStackSaysWhatIsWrongWithItsSource/forbidden-kind",
			"update.TestUpdateIsRefusedTheSourceOfAnotherNamespace", "stack.TestObjectInAnotherNamespaceNeedsTheFlag",
			"stack.TestKindThatIsNotAllowedStallsAndNamesTheFlag", "objectwatch.TestNothingIsKeptOfAnObjectButWhatIsListed",
		},
	},
	{
		name: "approvals", title: "What a Stack with approval changes was approved by somebody else, exactly as it was shown",
		text: `In the Workspace of a Stack with ` + "`spec.approval`" + `, only the plan runs that the status of the Stack has and that an
Approval of its digest approves, whoever created the Update, and whatever its labels, annotations and owners say. A preview runs only
the program of the Stack. [What an approval proves](#what-an-approval-proves) has each step. Admission policies make sure that only the
controller makes an Update one of a Stack, that ` + "`spec.by`" + ` of an Approval is who created it, and that to weaken ` + "`spec.approval`" + ` needs the verb
` + "`bypass`" + `. Approvals stay in their namespace. This does not stop who can run commands in the pod of the Workspace, edit
that Workspace, or use its credentials elsewhere.`,
		proofs: []string{
			"admission.TestApprovalIsByWhoMakesIt", "admission.TestWhoEditsAStackCannotWeakenItsApproval", "admission.TestStatusOfAStackIsNotForThoseWhoEditIt",
			"approval.TestApprovalIsJudgedByThePlanThatItNames", "update.TestUpdateByHandIsRefusedInAGatedWorkspace",
			"stack.TestNothingIsCarriedOutThatWasNotApproved", "e2e.TestRejectedPlanIsNotCarriedOut",
		},
	},
	{
		name: "rollouts", title: "Nobody holds back or stops the Stacks of others",
		text: `A Stack follows a StackRollout only if it names it, and only if the StackRollout admits its namespace. A Stack that it does not
admit is told that there is none, and counts for nothing: its failure stops nobody, and it takes no place in lists from others. Its
StackRollout has at most one event about such Stacks in an hour. Who writes the StackRollout decides, with ` + "`maxFailures`" + ` and
` + "`allowedNamespaces`" + `, whose failures stop others. An admission policy makes sure that to take a Stack out, to change its windows, or to give it a
revision before its turn, needs the verb ` + "`bypass`" + `. It does not stop who may create and delete Stacks, as the role ` + "`edit`" + ` does: [a Stack that is created
again](spec/v1/stacks.md#who-approves) without ` + "`rolloutRef`" + ` has no waves. Only the controller writes the turns.
Because both sides have agreed, ` + "`--no-cross-namespace-refs`" + ` does not apply to ` + "`allowedNamespaces`" + ` and ` + "`rolloutRef`" + `.`,
		proofs: []string{
			"admission.TestWhoEditsAStackCannotTakeItOutOfItsStackRollout", "e2e.TestStackWithoutItsStackRolloutGetsNothingNew",
			"rollout.TestStacksThatAreNotAdmittedTakeNoPlaceAndAreAnnouncedOnceAnHour",
		},
	},
	{
		name: "network", title: "Tenants cannot make the controller connect to its own machine or to metadata services",
		text: `The controller itself fetches artifacts, and git repositories of Stacks without a Flux source. Of an artifact, the path of
the URL must be that of the source which publishes it; the host can be any. The controller follows no redirect there,
and if it cannot connect, only its log says why. It rejects loopback, link-local, multicast and documentation addresses and the
metadata services of clouds, also inside IPv6 addresses, after it has resolved the name, and for git after each redirect.
A host that ends in a number must be an address in the usual notation, because proxies read others. Private addresses are
allowed, also 100.64.0.0/10, 198.18.0.0/15 and 240.0.0.0/4; restrict them with NetworkPolicies. A git server can redirect only to the same request for another repository. Of
a connection, a status says which kind of failure it was, and nothing that is in a certificate or comes from a server, a
proxy or a resolver, except the fingerprint of the host key of an SSH server. The answer of a git server is shown only if
the server received the credentials of the Stack, and not after a redirect. The same addresses are rejected for the API of
a GitHub App, of whose answer only the status is shown. There, a tenant chooses the server and the beginning of the path.`,
		proofs: []string{
			"download.TestUntrustedURLsSayNothingAboutTheNetwork", "download.TestRedirectIsFollowedOnlyWhereThatIsAllowed",
			"git.TestNothingOnTheMachineCanBeRead", "netguard.TestAddressesOfThisMachineAndOfCloudsAreRefused",
			"netguard.TestConnectionIsRefusedAfterTheNameWasResolved", "git.TestGitHubAppsWithLocalAddressesAreRefused",
			"netguard.TestEveryRangeOfSpecialAddressesIsDecidedOn", "netguard.TestAddressesInOtherAddressesAreDecidedOn",
			"netguard.TestAddressesInUnusualNotationsAreRefused", "git.TestProxyOfATenantMustNotBeLocal",
			"git.TestOfAnswersToGitHubAppsOnlyTheStatusIsShown", "git.TestGitHubAppsCannotRequestAnyPath",
			"git.TestRedirectsLeadToRepositoriesOnly", "git.TestAnswersOfHostsWithoutCredentialsAreNotShown",
			"git.TestErrorsInTheProtocolAreShownOnlyIfTheServerHasTheCredentials", "git.TestMessagesHaveNothingOfACertificate",
			"git.TestMessagesHaveNothingOfAProxy", "git.TestMessagesHaveNothingOfAResolver",
			"git.TestMessagesHaveNothingOfAnSSHServerBeforeItHasTheCredentials",
		},
	},
	{
		name: "expressions", title: "An expression uses at most 1 MB and 100 ms, and sees only a few fields",
		text: `A ` + "`readyExpr`" + ` has limits on its length, its compiled size, the values that it computes, and its time. All expressions of
a Stack take at most 0.5 s of a worker at once, and so do the checks of a StackRollout, with reading the large Stacks among those that are
checked. The memory for expressions is limited. An expression sees the fields that the
[specification](spec/v1/stacks.md#prerequisites-and-dependencies) lists, such as names, conditions and outputs. It
does not see templates, literals, URLs, or the annotations of the other Stack.`,
		proofs: []string{
			"readyexpr.TestReadyExprAllocatesAtMostAMegabyte", "readyexpr.TestReadyExprThatIsABombIsRefused", "readyexpr.TestProgramsThatAreKeptAreBounded",
			"readyexpr.TestReadyExprCannotReadWhatIsNotListed", "readyexpr.TestMessagesOfAReadyExprQuoteNoValue",
			"stack.TestExpressionsThatTakeLongAreEvaluatedInSeveralReconciles", "readyexpr.TestReadyExprCannotReadWhatIsHiddenOfAnObject",
			"readyexpr.TestReadyExprOfAnObjectHasTheSameBounds", "rollout.TestChecksOfManyStacksTakeBoundedTime",
		},
	},
	{
		name: "agents", title: "An agent is trusted only with its own Stack",
		text: `The owner of a pod can replace the agent in it. The controller limits each answer before it decodes it, shortens texts
when they arrive, and sets a deadline for each call. It identifies itself with a token that is valid for one workspace
and ten minutes. The API server and other agents reject this token.`,
		proofs: []string{
			"client.TestAnswersOfEmptyMessagesAreRefusedBeforeTheyAreDecoded", "client.TestLargestAnswersTakeLittleMemory",
			"client.TestErrorsOfAnAgentAreShort", "client.TestAgentsThatDoNotAnswerKeepFewCallersWaiting", "client.TestFlappingAgentLeavesNothingBehind",
		},
	},
	{
		name: "agent-access", title: "Only the controller can call an agent",
		text: `An agent uses TLS with its own key, which the controller pins, and accepts only calls that prove to come from the
controller. If it has the permission, it asks the API server; otherwise it verifies the token itself. A NetworkPolicy
adds a second layer of protection, see [config/workspaces](../config/workspaces).`,
		proofs: []string{
			"pods.TestAgentLetsInOnlyWhomItHasTo", "auth.TestAFloodOfBadTokensNeitherReachesTheAPIServerNorShutsOutTheController",
			"auth.TestCallsThatNobodyHasDecidedOnAreBounded", "install.TestNetworkPoliciesLetThroughWhatIsNeededAndNothingElse",
		},
	},
	{
		name: "names", title: "The name of an object does not give access to another object",
		text: `The controller takes over an existing object with the name that it needs only if the controller or the Pulumi
Kubernetes Operator created it. Otherwise a condition names the object. Labels select objects, but ownership is
decided by the UID of the owner. A template of a Stack adds no labels and annotations of this project to its objects.`,
		proofs: []string{
			"pod.TestStatefulSetThatNobodyOwnsIsLeftAlone", "pod.TestServiceThatNobodyOwnsIsLeftAlone", "pod.TestKeyPairThatSomebodyElseMadeIsNotUsed",
			"pod.TestObjectThatLostItsOwnerGetsItBack",
			"template.TestUpdateTemplateIsMergedOverTheUpdate", "stack.TestWorkspaceThatIsNotTheStacksIsLeftAlone", "stack.TestUpdateThatIsNotTheStacksIsNotFollowed",
		},
	},
	{
		name: "status", title: "Tenants cannot write the status of Stacks, Programs, Workspaces and Updates",
		text: `The edit role has no permission to write a status. The controller accepts the status of a source only for artifacts
that the source itself can have published.`,
		proofs: []string{"source.TestSourceIsBelievedForItsOwnArtifactsOnly"},
	},
	{
		name: "pods", title: "A workspace pod has no more privileges than other pods of its namespace",
		text: `A tenant chooses the image, service account and pod template, as for any pod that the tenant is allowed to create. Pod
Security Admission, quotas and limits of the namespace apply. If they reject the pod, a condition of the Workspace
says so.`,
		proofs: []string{"pods.TestPodsHaveNoPrivilegeThatTheyDoNotUse", "pods.TestControllerMayDoNothingThatItDoesNotNeed", "pods.TestRulesOfTheControllerHaveNoWildcard"},
	},
	{
		name: "rights", title: "The controller has no permission that it does not need",
		text: `[Each permission](rbac.md) has a reason, and something fails without it. Profiles, which show memory, are disabled by
default and served only on a loopback address. In a pod, programs run as child processes of the controller only if a
flag allows it.`,
		proofs: []string{
			"rbac.TestEveryRightIsNeeded", "rbac.TestEveryRightHasARow", "app.TestControllerServesProbesMetricsAndProfilesAndStopsWhenAsked",
			"app.TestInAPodProgramsRunAsTheControllerOnlyWhenAFlagSaysSo", "install.TestControllerOfOneNamespaceDeploysAStackThereAndHasNoRightsElsewhere",
		},
	},
	{
		name: "secrets", title: "Secrets are only where they are needed",
		text: `The controller reads Secrets when an operation starts. It does not cache or log them, or write them to an event,
condition or status. It masks them in the output of Pulumi, in plain and encoded form. After all attacks, the test
searches everything that the attacker can read, and the log of the controller, for the secrets of the victim.`,
		proofs: []string{"tenancy.TestTenants", "pods.TestWalkthrough", "redact.TestRedactorHidesEncodedValues"},
	},
	{
		name: "archives", title: "An artifact cannot leave its directory or exceed its size",
		text: `The controller checks a tarball before it unpacks it, and the agent checks it again: the compressed and unpacked size,
the number and names of entries, links, and anything that is not a file or a directory.`,
		proofs: []string{"archive.TestHostileArchiveIsRefused", "archive.TestTenMillionEntriesAreRefusedBeforeTheyAreRead", "archive.TestMemoryDoesNotGrowWithTheArchive"},
	},
	{
		name: "sizes", title: "Limits apply to each tenant separately",
		text: `The API server accepts objects of one to two megabytes, with up to 256 KiB of annotations. The controller keeps only
the fields that it reads of sources, Programs, Updates and objects in the cluster that tenants can label. Of a Stack, Workspace,
Update or Approval that takes more than 64 KiB of memory it decodes and keeps the small fields, and reads the object again when it
reconciles it. No user can write the mark of such an object. One that takes more than 4 MiB, because it has very many small parts, is refused. Everything that it derives from them, such as variables, programs, patterns and messages, has its own limits. The controller runs with
512 MiB.`,
		proofs: []string{
			"update.TestValuesOfAnOperationAreBounded", "artifact.TestThereAreNotMoreArtifactsThanAllowedHoweverSmallTheyAre", "app.TestMemoryLimitLeavesRoomForTheKernel",
			"source.TestCacheHoldsLittleOfASourceWhoseOwnerWritesMuch", "source.TestCacheHoldsNothingOfWhatAProgramRuns", "pod.TestCacheKeepsLittleOfObjectsThatSomebodyElseLabelled",
			"informercache.TestSmallFieldsOfALargeObjectAreKept", "informercache.TestObjectsOfEveryShapeAreShortened",
			"informercache.TestCacheOfARealAPIServerHasTheSmallFieldsOfLargeObjects", "informercache.TestUsersCannotWriteTheMarkOfAShortenedObject",
			"source.TestSubscriptionsHoldLittleOfWhatTheirStacksWrite", "source.TestLongFieldsOfAGitSourceAreRefused",
			"informercache.TestManySmallPartsCountAsTheMemoryThatTheyTake", "stack.TestStackOfVeryManySmallPartsIsRefusedAndRecovers",
			"update.TestOneMoreThanAnOperationMayHaveIsRefused", "stack.TestObjectsToEmptyAreFoundInLongLists",
			"podspec.TestMessageAboutVeryManyProblemsTakesLittleMemory", "render.TestProgramOfVeryManySmallPartsIsRefusedBeforeItIsDecoded",
			"git.TestHostileRepositoriesFitTheContainer", "git.TestHostileTreesAreRefused",
			"git.TestHostilePacksAreRefused", "git.TestHostileAnswersAreBounded",
		},
	},
	{
		name: "fairness", title: "A tenant does not delay other tenants",
		text: `Namespaces share reconciliations, downloads, deliveries and the store of artifacts fairly, and slow transfers are stopped. While all attacks
run, a commit of the victim takes at most twice as long as on a quiet system. ` + "`make bench`" + ` measures this, beside most
of the attacks. There and in the attacks, a namespace has a thousand Stacks. That ten thousand reconciles of one namespace
do not delay those of another is tested with the queue of the controller alone. [Goroutines that all tenants
share](design.md#goroutines-that-all-tenants-share) do a bounded amount of work for each object. Nothing can interrupt arithmetic with large
numbers, so RSA keys for git with more than 8192 bits are rejected before they are used. For the same reason the effort for
known hosts, certificates, ` + "`.gitmodules`" + ` and the hosts of redirects of a git server is bounded, and one private key is decrypted at a time. If a defect causes a panic
in a reconcile, in work in the background or when a watch event is handled, that object fails or waits, and the controller
continues. Only if the event is one of the first list, the controller does not start.`,
		proofs: []string{
			"app.TestEventWhoseHandlerPanicsIsSkipped", "sharedwork.TestNoObjectCostsMuchInSharedGoroutines",
			"informercache.TestTextOfAnEventIsScannedAFewTimesOnly",
			"fairqueue.TestReconcileOfAnotherNamespaceIsNextButOneAfterTenThousand", "fairqueue.TestNamespaceHoldsHalfOfWhatOthersLeave",
			"fairqueue.TestStormOfWakesBecomesBoundedReconcilesAndTheLastIsNotLost", "artifact.TestTarpitsOfOneNamespaceDoNotDelayDownloadsOfAnother",
			"artifact.TestNamespaceThatFillsTheStoreEvictsItsOwnContent",
			"source.TestUnknownKindsCauseFewDiscoveryRequestsAndHideNoServedKinds",
			"source.TestServersOfOneNamespaceThatHangDoNotDelayPollsOfAnother", "throughput.TestBytePerSecondIsEndedAfterAWindow",
			"git.TestServerThatIsSlowForLongIsLeft", "git.TestSSHServerThatIsSlowForLongIsLeft",
			"git.TestKeysThatWouldTakeHoursAreRefused", "git.TestOnePrivateKeyIsDecryptedAtATime",
			"git.TestEffortForKnownHostsIsInProportionToTheirSize", "git.TestModulesOfVeryManySectionsAreRefused",
			"git.TestFewSecretsAreLookedForInTheTextOfAServer", "netguard.TestLongHostIsRefusedAtOnce",
			"artifact.TestPanicInTheBackgroundIsAnErrorLikeAnother",
			"update.TestPanicOfWorkForAnUpdateEndsThatWorkOnly", "source.TestPanicOfAPollIsAProblemLikeAnother",
			"git.TestPanicOfAnExchangeForATokenIsAnErrorLikeAnother",
		},
	},
}

// attacksIn is the directory of the package with the attacks.
const attacksIn = "tests/e2e/tenancy"

// attack is an attack as the page shows it.
type attack struct{ name, promise, does, sees, file string }

// parse returns the test files of a directory by their names, relative to the root of the repository.
func parse(t *testing.T, dir string) map[string]*ast.File {
	g := NewWithT(t)
	paths, err := filepath.Glob(filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(dir), "*_test.go"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(paths).NotTo(BeEmpty(), dir)
	files := map[string]*ast.File{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		files[filepath.ToSlash(filepath.Join(dir, filepath.Base(path)))] = file
	}
	return files
}

// findAttacks returns the attacks of all tables, in the order of the tables in attacks().
func findAttacks(t *testing.T) []attack {
	tables := map[string][]attack{}
	var order []string
	for name, file := range parse(t, attacksIn) {
		ast.Inspect(file, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.ValueSpec:
				if len(node.Values) == 1 {
					tables[node.Names[0].Name] = attacksOf(node.Values[0], name)
				}
			case *ast.FuncDecl:
				if node.Name.Name == "attacks" {
					order = identifiersIn(node.Body)
				}
			}
			return true
		})
	}
	var all []attack
	for _, table := range order {
		all = append(all, tables[table]...)
	}
	return all
}

// attacksOf returns the attacks of a table, or nothing if the value is not a table of attacks.
func attacksOf(value ast.Expr, file string) (found []attack) {
	list, ok := value.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	for _, element := range list.Elts {
		literal, ok := element.(*ast.CompositeLit)
		if !ok {
			continue
		}
		fields := map[string]string{}
		for _, field := range literal.Elts {
			if pair, ok := field.(*ast.KeyValueExpr); ok {
				if key, ok := pair.Key.(*ast.Ident); ok {
					fields[key.Name] = text(pair.Value)
				}
			}
		}
		if fields["does"] != "" {
			found = append(found, attack{name: fields["name"], promise: fields["promise"], does: fields["does"], sees: fields["sees"], file: file})
		}
	}
	return found
}

// text returns the value of a string literal, or of several joined by +.
func text(value ast.Expr) string {
	switch value := value.(type) {
	case *ast.BasicLit:
		if unquoted, err := strconv.Unquote(value.Value); err == nil && value.Kind == token.STRING {
			return unquoted
		}
	case *ast.BinaryExpr:
		return text(value.X) + text(value.Y)
	}
	return ""
}

func identifiersIn(node ast.Node) (names []string) {
	ast.Inspect(node, func(node ast.Node) bool {
		if name, ok := node.(*ast.Ident); ok {
			names = append(names, name.Name)
		}
		return true
	})
	return names
}

// document is the page, relative to the root of the repository.
const document = "docs/security.md"

var updateDocs = flag.Bool("update-docs", false, "write "+document)

// updateCommand is the command that writes the page.
const updateCommand = "go test ./tests/contract/security -update-docs"

//go:embed page.tmpl
var page string

func TestSecurityPageIsUpToDate(t *testing.T) {
	g := NewWithT(t)
	attacks, tests := findAttacks(t), pages.FindTests(t)
	var promised, approval strings.Builder
	writeApprovalSteps(t, &approval, tests)
	for i := range promises {
		writePromise(t, &promised, &promises[i], attacks, tests)
	}
	tmpl, err := template.New("page").Option("missingkey=error").Parse(page)
	g.Expect(err).NotTo(HaveOccurred())
	var made strings.Builder
	g.Expect(tmpl.Execute(&made, map[string]any{
		"promises": strings.TrimSpace(promised.String()), "attacks": len(attacks), "marks": pages.AboutMarks("../"), "limits": limitRows(t, tests), "approval": strings.TrimSpace(approval.String()),
	})).To(Succeed())

	pages.Keep(t, document, made.String(), updateCommand, *updateDocs)
}

// writePromise writes a promise with the attacks on it and its other tests.
func writePromise(t *testing.T, out *strings.Builder, p *promise, attacks []attack, tests *pages.Tests) {
	fmt.Fprintf(out, "### %s\n\n%s\n", p.title, p.text)
	rows := 0
	for _, attack := range attacks {
		if attack.promise != p.name {
			continue
		}
		if rows == 0 {
			out.WriteString("\n| the attacker | result | test |\n|---|---|---|\n")
		}
		rows++
		fmt.Fprintf(out, "| %s | %s | [%s](../%s) |\n", pages.Cell(attack.does), pages.Cell(attack.sees), attack.name, attack.file)
	}
	links := linksTo(t, p.proofs, tests)
	if len(links) > 0 {
		fmt.Fprintf(out, "\nMore tests: %s.\n", strings.Join(links, ", "))
	}
	if rows+len(links) == 0 {
		t.Errorf("nothing stands for the promise %q", p.name)
	}
	out.WriteString("\n")
}

// linksTo returns a link to each of the tests.
func linksTo(t *testing.T, proofs []string, tests *pages.Tests) (links []string) {
	t.Helper()
	for _, proof := range proofs {
		file, found := tests.File(proof)
		if !found {
			t.Errorf("there is no test %s", proof)
		}
		links = append(links, fmt.Sprintf("[%s](../%s)%s", proof, file, tests.Mark(proof)))
	}
	return links
}

func TestEveryAttackIsOnAPromise(t *testing.T) {
	g := NewWithT(t)
	names := map[string]bool{}
	for _, promise := range promises {
		names[promise.name] = true
	}
	attacks := findAttacks(t)
	g.Expect(len(attacks)).To(BeNumerically(">=", 40))
	for _, attack := range attacks {
		g.Expect(names).To(HaveKey(attack.promise), attack.name)
		g.Expect(attack.does).NotTo(BeEmpty(), attack.name)
		g.Expect(attack.sees).To(MatchRegexp("`[A-Za-z0-9]+`"), "%s: a reason, a code or a field, which the attack compares with what it finds", attack.name)
	}
}
