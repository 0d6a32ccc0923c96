package command

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/migrate"
)

func (s *session) migratePlan() *cobra.Command {
	return &cobra.Command{
		Use: "plan", Short: "Say what a move from the Pulumi Kubernetes Operator means for this cluster",
		Long: "Read the controllers and the Stacks of the cluster, and say what has to be changed before a move from the Pulumi\n" +
			"Kubernetes Operator, and what to do in which order. It changes nothing.",
		Args: arguments(cobra.NoArgs),
		RunE: s.onCluster(func(ctx context.Context, c *cluster, _ []string) error {
			return (&planner{session: s, cluster: c}).plan(ctx)
		}),
	}
}

// planner explains what a move means for the cluster.
type planner struct {
	*session
	cluster *cluster
	// operators are the Deployments of the operator, by namespace and name.
	operators []string
	// installers have installed the operators.
	installers []*migrate.Installer
	// runs is whether stack-controller is running already.
	runs bool
}

func (p *planner) plan(ctx context.Context) error {
	if err := p.controllers(ctx); err != nil {
		return err
	}
	running, err := p.cluster.running(ctx)
	if err != nil {
		return err
	}
	list := &pulumiv1.StackList{}
	if err := p.cluster.list(ctx, list); err != nil {
		return err
	}
	p.stacks(list.Items)
	p.out.Line("")
	if len(running) > 0 {
		p.out.Fact("Running updates", print.Cell{Text: strings.Join(running, ", "), Style: print.Busy})
	}
	p.steps()
	return nil
}

// controllers shows the controllers in the cluster, and what would restore them after a change.
func (p *planner) controllers(ctx context.Context) error {
	found := &appsv1.DeploymentList{}
	if err := p.cluster.list(ctx, found); err != nil {
		return err
	}
	for i := range found.Items {
		deployment := &found.Items[i]
		if !isController(deployment) {
			continue
		}
		name, text := deployment.GetNamespace()+"/"+deployment.GetName(), "stack-controller"
		if isOperator(deployment) {
			p.operators = append(p.operators, name)
			text = "Pulumi Kubernetes Operator"
			if installer := migrate.InstallerOf(deployment); installer != nil {
				p.installers = append(p.installers, installer)
			}
		} else {
			p.runs = p.runs || replicasOf(deployment) > 0
		}
		text += fmt.Sprintf(": Deployment %s, %d replicas, %s", name, replicasOf(deployment), imageOf(deployment))
		if owner := restoringOwner(deployment); owner != "" {
			text += "; suspend " + owner + " first, which would restore it"
		}
		p.out.Fact("Controller", print.Cell{Text: text})
	}
	if len(p.operators) == 0 {
		p.out.Fact("Controller", print.Cell{Text: "no Deployment of the Pulumi Kubernetes Operator was found", Style: print.Busy})
	}
	return nil
}

// restoringOwner returns the name of the object that would restore a Deployment after a change.
func restoringOwner(object *appsv1.Deployment) string {
	if installer := migrate.InstallerOf(object); installer != nil {
		return installer.String()
	}
	return ""
}

// stacks shows the Stacks, and what has to be changed in each of them.
func (p *planner) stacks(found []pulumiv1.Stack) {
	p.out.Line("")
	var rows [][]print.Cell
	for i := range found {
		stack := &found[i]
		needs, style := needsOf(stack), print.Good
		if len(needs) > 0 {
			style = print.Busy
		}
		rows = append(rows, []print.Cell{{Text: stack.Namespace}, {Text: stack.Name}, ready(stack.Status.Conditions), {Text: sourceKind(stack)},
			{Text: title(stack.Spec.DestroyOnFinalize)}, {Text: fmt.Sprintf("%d", len(needs)), Style: style}})
	}
	print.NewTable(p.out, "NAMESPACE", "STACK", "READY", "SOURCE", "DESTROY", "NOTES").Write(rows...)
	for i := range found {
		for _, need := range needsOf(&found[i]) {
			p.log.Warning("Stack %s/%s: %s", found[i].Namespace, found[i].Name, print.Clean(need))
		}
	}
}

func sourceKind(stack *pulumiv1.Stack) string {
	if source := sourceOf(stack); source != nil {
		return source.GetKind()
	}
	if stack.Spec.ProjectRepo != "" {
		return "git"
	}
	return ""
}

// sshURL matches the URL of a git server that identifies itself by a host key.
var sshURL = regexp.MustCompile(`^ssh://|^[^/]+@[^/]+:`)

// needsOf returns what has to be changed for a Stack, or what will be different, as one sentence each.
func needsOf(stack *pulumiv1.Stack) (needs []string) {
	if !stack.DeletionTimestamp.IsZero() {
		needs = append(needs, "it is being deleted: let that end first, or stack-controller goes on with it.")
	}
	if auth := stack.Spec.GitAuth; sshURL.MatchString(stack.Spec.ProjectRepo) && (auth == nil || auth.KnownHostsRef == nil) {
		needs = append(needs, "the host key of its git server has to be known: add known_hosts to the Secret with the private key, set "+
			"gitAuth.knownHostsRef, or start the controller with --git-known-hosts-file.")
	}
	needs = append(needs, gitAuthNeeds(stack.Namespace, stack.Spec.GitAuth)...)
	needs = append(needs, referencesNeed("envRefs", stack.Namespace, stack.Spec.EnvRefs)...)
	needs = append(needs, referencesNeed("secretsRef", stack.Namespace, stack.Spec.SecretRefs)...)
	if last := stack.Status.LastUpdate; last != nil && last.Generation == 0 {
		needs = append(needs, "its status does not say which generation is deployed, so pulumi up runs once.")
	}
	condition := apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition)
	if condition == nil || condition.Status != "True" {
		needs = append(needs, "it is not Ready: stack-controller tries it again.")
	}
	slices.Sort(needs)
	return needs
}

// gitAuthNeeds returns what is wrong with the credentials of git, which have to be in a Secret.
func gitAuthNeeds(namespace string, auth *pulumiv1.GitAuthConfig) (needs []string) {
	if auth == nil {
		return nil
	}
	references := map[string]pulumiv1.ResourceRef{}
	optional := func(field string, reference *pulumiv1.ResourceRef) {
		if reference != nil {
			references[field] = *reference
		}
	}
	optional("accessToken", auth.PersonalAccessToken)
	if ssh := auth.SSHAuth; ssh != nil {
		references["sshAuth.sshPrivateKey"] = ssh.SSHPrivateKey
		optional("sshAuth.password", ssh.Password)
	}
	if basic := auth.BasicAuth; basic != nil {
		references["basicAuth.userName"], references["basicAuth.password"] = basic.UserName, basic.Password
	}
	if app := auth.GitHubApp; app != nil {
		references["githubApp.appID"], references["githubApp.installationID"], references["githubApp.privateKey"] = app.AppID, app.InstallationID, app.PrivateKey
	}
	for _, field := range slices.Sorted(maps.Keys(references)) {
		if kind := references[field].Type; kind != pulumiv1.ResourceRefSecret {
			needs = append(needs, fmt.Sprintf("gitAuth[%s] of type %s is rejected: use a Secret.", field, kind))
			delete(references, field)
		}
	}
	return append(needs, referencesNeed("gitAuth", namespace, references)...)
}

// referencesNeed returns what is wrong with the references.
func referencesNeed(place, namespace string, references map[string]pulumiv1.ResourceRef) (needs []string) {
	for _, key := range slices.Sorted(maps.Keys(references)) {
		switch reference := references[key]; {
		case reference.Type == pulumiv1.ResourceRefEnv, reference.Type == pulumiv1.ResourceRefFS:
			needs = append(needs, fmt.Sprintf("%s[%s] of type %s is rejected: use a Literal or a Secret.", place, key, reference.Type))
		case reference.SecretRef != nil && reference.SecretRef.Namespace != "" && reference.SecretRef.Namespace != namespace:
			needs = append(needs, fmt.Sprintf("%s[%s] names a Secret in namespace %s: copy it into that of the Stack.",
				place, key, reference.SecretRef.Namespace))
		}
	}
	return needs
}

// steps shows the next steps.
func (p *planner) steps() {
	self := invocation(p.Program)
	steps := []string{
		"Save the objects: kubectl get stacks,programs -A -o yaml > stacks.yaml", "Read the notes above, and change what they ask for.",
	}
	for _, operator := range p.operators {
		namespace, name, _ := strings.Cut(operator, "/")
		steps = append(steps, fmt.Sprintf("Stop the operator: %s migrate stop %s -n %s", self, name, namespace))
	}
	if p.runs {
		steps = append(steps, "stack-controller runs already. Never run both at the same time.")
	} else {
		steps = append(steps, "Install stack-controller: docs/guides/installation.md")
	}
	steps = append(steps, fmt.Sprintf("Check: %s check, and %[1]s get stacks -A -w", self))
	for _, installer := range p.installers {
		why, commands := installer.Removal()
		steps = append(steps, fmt.Sprintf("Remove %s: %s. %s", installer, strings.Join(commands, "; "), why))
	}
	steps = append(steps, "Remove what is left of the operator, but not its CRDs: docs/guides/migration.md",
		fmt.Sprintf("To go back, until then: stop stack-controller in the same way, run %s migrate back, and scale the operator up", self))
	for i, step := range steps {
		p.out.Fact(fmt.Sprintf("Step %d", i+1), print.Cell{Text: step})
	}
}
