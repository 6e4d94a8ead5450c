"""Tools of the office and the machine: users, products, orders, tickets, files, databases, servers."""

from executors.tiny.data.tool_kind import read_kinds

OFFICE = read_kinds("""
user: get_user find_user lookup_user user_info get_user_by_id
[Get|Find|Look up] a user[ by id|][.|]; User [information|data]; Show the [profile|account|details] of a user; Fetch the data of a user
user_id/id/uid:id
[get|find|show|look up|fetch] [me |][the |]user {0}; who is user {0}; ~[user|information about user] {0}; [show|find|look up] [me |]the user with [the |]id {0}; ~user number {0}; [get|fetch|pull up] the [account|profile|data] of user {0}; ~I need the [details|data] of user {0}
[show|open|pull up] [me |]the [profile|account|details] of user {0}; ~[profile|account|data] of user {0}; [fetch|find|get] [the |]user number {0}; [give|show] me [information|details|data] [on|about] user {0}; ~user id {0}; which user has [the |]id {0}; who has [the |]user id {0}; pull up user {0}
what do we know about user {0}; tell me about user {0}; who is the user with [the |]id {0}; fetch user {0}; what is the [profile|information] of user {0}; ~information on user {0}; ~{0} is a user id, who is it; look up user number {0}; open user {0}; ~details on user {0}; ~data on user number {0}

user: get_customer find_customer customer_info lookup_customer
[Get|Find] a customer[.|]; Customer [data|lookup]; Show the [details|record] of a customer; Look up a customer by [id|number]
customer_id/id/customer:id
[get|find|show|look up] [the |]customer {0}; who is customer {0}; ~customer number {0}; [show|pull up] [me |]the customer with [the |]id {0}; ~details of customer {0}; [open|get] the record of customer {0}
[fetch|pull up|open] [the |]customer {0}; [show|give] me [information|details|data] [on|about] customer {0}; ~customer {0}; ~customer id {0}; [get|fetch|pull up] the [details|data|record] of customer {0}; look up customer number {0}; which customer has [the |]id {0}; who is the customer with [the |][id|number] {0}; ~record of customer {0}
what do we know about customer {0}; tell me about customer {0}; ~I need the [details|record|data] of customer {0}; find the customer number {0}; ~information on customer {0}; show the record of customer number {0}; ~data on customer {0}

user: find_person search_employee find_employee search_users
[Find|Search] [a person|an employee|users] by name[.|]; Staff directory; Look up [a colleague|an employee]; Search the staff
name/full_name/query:person
[find|look up|search for] [the |][employee|user|colleague] [named |called |]{0}; who is {0}; ~employee {0}; which [team|office|department] is {0} in; do we have [an employee|a user] called {0}; ~staff record of {0}
[find|show|get] [me |]the [employee|colleague] {0}; does {0} work [here|with us|at our company]; is there [an employee|a colleague|a user] [named|called] {0}; look {0} up in the staff directory; search the [staff|directory] for {0}; what [team|department] does {0} work in; ~colleague {0}; ~staff directory: {0}; is {0} an employee here
search for a colleague [named|called] {0}; who is our colleague {0}; find {0} in the [directory|staff list]; do we have somebody called {0}; is there anybody here called {0}; is {0} on [our|the] staff; which office does {0} work in; ~I am looking for [an employee|a colleague] named {0}; find the record of employee {0}; is {0} in our company; does somebody named {0} work at our company; is anybody named {0} on the staff
~somebody named {0}, which department is that; is there somebody at our company called {0}; which team at our company is {0} in; look for somebody called {0} on the staff

user: create_user add_user register_user new_user
[Create|Add|Register] a user[.|]; New user; Create an account for a new user; Sign up a user with an email
name/username/full_name:person email/mail/email_address:email
[create|add|register] [a |the |a new ]user {0} with [the |]email {1}; ~new user {0}, {1}; sign up {0} with {1}; add {0} as a user, email {1}; register {0} ({1}); ~new account for {0}, email {1}
[create|open|set up] an account for {0} with [the |]email {1}; sign {0} up with the email {1}; register {0} with the [address|email] {1}; add a [new |]user [called|named] {0}, email {1}; ~new user: {0}, email: {1}; add the new user {0} ({1}); [register|add] {0} as a new user with the [address|email] {1}; create a user named {0} with [email|mail] {1}
create an account: {0}, {1}; ~{0} is a new user, email {1}; [set up|open] a new account for {0} with the address {1}; sign up {0}, email {1}; ~register: {0}, mail {1}; ~please register {0} with email {1}; ~{0} needs an account, the email is {1}; ~user {0} with mail {1}, please add; ~{0} needs to be set up as a user, email {1}; ~there is a new user, {0}, {1}; ~the new user is {0}, email {1}; ~the user {0} needs an account with email {1}; ~{0} needs a user account, mail {1}

user: delete_user remove_user deactivate_user
[Delete|Remove] a user[.|]; Delete an account; Deactivate the account of a user; Get rid of a user
user_id/id/user:id
[delete|remove|deactivate] [the |]user {0}; delete the account of user {0}; ~user {0} must go; remove the user with [the |]id {0}; get rid of user {0}; ~user {0} has left, delete the account
[remove|deactivate|close] the account of user {0}; delete the user with [the |]id {0}; delete user number {0}; ~delete user: {0}; ~user {0} should be [deleted|removed]; ~user {0} has left us, remove the account; ~I want to [delete|remove] user {0}; get rid of the user with the id {0}; ~user {0} can be [deleted|removed]; close the user account {0}
~user {0} must be [deleted|removed|deactivated]; take user {0} out of the system; ~we do not need user {0} any more; remove user {0} from the system; ~we no longer need user {0}, delete the account; ~user {0} no longer works here, delete the account; ~user {0} does not work here any more, remove the account; ~user {0} must go, close the account; throw user {0} out of the system; throw out user {0}
remove user number {0}; close the account of user number {0}; ~user number {0} has left, delete the user; let user {0} go and close the account; ~user {0} has to go; throw user {0} out; throw the user {0} out of the system; ~user number {0} is leaving, remove the user; deactivate user number {0}; ~delete user number {0} please; ~user {0} is leaving us, remove the user; ~user {0} is leaving, delete the account; ~user number {0} is no longer here, deactivate the account

product: get_product product_info find_product lookup_product
[Get|Find] a product[ by id|][.|]; Product [data|details]; Look up a product by [id|number]; Show information on a product
product_id/id/sku:id
[get|show|find|look up] [me |][the |]product {0}; what is product {0}; ~product {0}; [show|give] me [the |]details of product {0}; ~info on product number {0}; find the product with [the |]id {0}
[fetch|open|pull up] product {0}; ~product id {0}; ~product number {0}; ~details of product {0}; look up product number {0}; [give|get|show] me [info|information|details|data] on product {0}; which product has [the |][id|number] {0}; tell me about product {0}; what is the product with [the |]id {0}; ~I need the [details|data|info] of product {0}
pull up the details of product {0}; fetch the product with [the |][id|number] {0}; what do we know about product {0}; what kind of product is {0}; show the product data of {0}; ~info on product {0}; open the page of product {0}; what are the details of product {0}; which kind of product is number {0}; show [me |]the page of product {0}; what kind of thing is product {0}; which kind of product has the number {0}; what kind of product is number {0}
which product has the number {0}; what is product {0}, show the details; has product {0} any details, show me

product: search_products find_products product_search shop_search
Search [for |][products|the shop][.|]; Product search; Find products in the [shop|store] under a price; What the shop sells
query/name/keyword/product:product max_price/price_limit:number?
[find|search|show me] [the product|products called] {0}; do you [have|sell] {0}; is {0} in stock; ~I want to buy {0}, do you have it; ~search the [shop|store] for {0}; find {0} [under|below|for less than] {1} [dollars|euros]; what kinds of {0} do you sell
search the [shop|store|catalogue] for {0}; does the [shop|store] [have|sell] {0}; is there any {0} in the [shop|store]; ~{0} [under|below] {1} [dollars|euros]; search for {0} [under|below] {1} [dollars|euros]; which {0} do you [have|sell] [for less than|under|below] {1} [dollars|euros]; [find|show] me {0} in the [shop|store]; ~product search: {0}; do you have {0} in stock; ~I want to buy {0}, what do you have
show me products like {0}; what {0} do you have in stock; ~I'm looking to buy {0}, what does the shop have; do you sell any {0}; what kinds of {0} do you have in the shop; look for {0} in the [shop|store|catalogue]; ~I want {0} for less than {1} [dollars|euros], do you sell it; show me {0} [that costs less than|up to] {1} [dollars|euros]; ~{0} up to {1} [dollars|euros]; do you have {0} [for less than|up to] {1} [dollars|euros]; what kind of {0} does the store sell; find products like {0}; which shop products are called {0}; ~I'm looking for {0} that costs less than {1} [dollars|euros]

order: get_order order_status track_order check_order get_order_status
[Get|Check|Track] [the status of |]an order[.|]; Order status; Find out where an order is; See whether an order has shipped
order_id/id/number/order_number:id
[where is|track|check|show] [my |]order {0}; [what is |what's |]the status of [my |]order {0}; ~order {0} status; has [my |]order {0} [arrived|shipped|been sent]; when does [my |]order {0} arrive; when will [my |]order {0} [arrive|be here|get here]
where's [my |]order {0}; ~status of order {0}; how is [my |]order {0} [doing|coming along]; ~I'm waiting for order {0}; look up [my |]order {0}; is [my |]order {0} on its way; ~my order number is {0}, where is it
what's the status of [my |]order {0}; what's [happening|going on] with [my |]order {0}; [check|find|look up] order number {0}; ~order {0}, where is it; ~order number {0}, has it [shipped|arrived]; has order {0} been [shipped|sent] yet; did order {0} [arrive|ship] yet; is order {0} [here|there] yet; how far is [my |]order {0}; ~I want to know where order {0} is
~I ordered something, the order number is {0}, where is it; [give|show|get] me the status of order {0}; is there any news [on|about] order {0}; what happened to [my |]order {0}; ~waiting for order {0}, when will it get here; has my order {0} been sent; when can I expect order {0}; ~can't find order {0}, where is it; how long will order {0} take; check on [my |]order {0}; is my order {0} coming; how long until order {0} is here; when should I expect my order {0}; ~I can't wait for order {0}, where is it; what is going on with order {0}
what has happened to order {0}; what happened with order {0}; is anything happening to order {0}; ~I can't see where order {0} is; when is order {0} coming; is order {0} coming soon; what happened, where is order {0}; has something happened to order {0}; ~something happened to order {0}, check it

order: track_package track_shipment package_status get_delivery
Track a [package|shipment|delivery][.|]; [Package|Delivery] status; Find out where a [package|parcel] is; Tracking of parcels
tracking_number/package_id/tracking_id:code
[track|find|check] [my |the |]package {0}; where is [my |the |]package {0}; ~tracking number {0}; when [does|will] [my |]package {0} arrive; has [my |the |]package {0} [arrived|shipped]; ~status of [package|shipment|delivery] {0}
[track|find|check] [my |the |][shipment|delivery|parcel] {0}; where is [my |the |][parcel|shipment|delivery] {0}; ~package {0}, where is it; ~my tracking number is {0}; ~parcel {0}; ~package {0} status; has [my |the |][parcel|shipment|delivery] {0} [arrived|come|shipped]; when will [my |the |][parcel|shipment|delivery] {0} [arrive|come]; what's the status of [package|parcel|shipment] {0}
is [my |the |][package|parcel|delivery] {0} on its way; track number {0}; check the tracking number {0}; where's [my |the |][package|parcel] {0}; what happened to [my |the |][package|parcel|shipment] {0}; ~I'm waiting for [package|parcel] {0}; how far is [my |the |][package|parcel|shipment] {0}; ~shipment number {0}, please; did the [package|parcel] with number {0} arrive; when can I expect package {0}; when should I expect parcel {0}; has delivery {0} been sent; is parcel {0} here yet; ~waiting for shipment {0}, is it here yet; has my package {0} been sent
what has happened to parcel {0}; what happened to the delivery with number {0}; what happened to package {0}; can I expect package {0} [today|soon]; when do I expect delivery {0}; has parcel {0} been sent; has shipment {0} been sent yet; when do you expect package {0} to arrive; do you know where parcel {0} is; how do I track package {0}; how do I find out where parcel {0} is; how can I track shipment {0}; how is my package {0} doing

order: cancel_order order_cancel
Cancel an order[.|]; Cancels [an order|a purchase]; Stop an order that is not wanted any more; Call off an order
order_id/id/number:id
cancel [my |the |]order [number |]{0}; ~I want to cancel order {0}; stop order {0}; ~I do not want order {0} any more; ~order {0} was a mistake, cancel it; can I cancel order {0}
~cancel order: {0}; ~order {0}, cancel it; ~I [need|have|would like] to cancel [my |]order {0}; ~I don't want order {0} [any more|now]; please stop [my |]order {0}; ~order {0} should be [cancelled|stopped]; call off order {0}; ~my order {0} was a mistake; cancel the purchase with order number {0}; ~I don't need order {0} any more, cancel it
~I no longer [want|need] order {0}; ~I ordered by mistake, cancel order {0}; can order {0} be [cancelled|stopped]; can you call off my order {0}; can you [stop|cancel] order number {0}; ~the order {0} is not wanted any more; do not [send|ship] order {0}, cancel it; cancel what I ordered, number {0}; ~please do not ship order {0}, I do not want it; ~order {0} is not needed any more, stop it; ~order {0} is no longer needed; can I call off order {0}; ~I no longer want what I ordered, order {0}; don't send order {0}, cancel it
cancel my purchase, order {0}; cancel the purchase {0}; ~don't ship order {0}, I want to cancel it; do not send me order {0}, cancel it; do not ship order {0} any more, cancel it

order: refund_order refund request_refund return_order
Refund an order[.|]; Request a refund; Return an order and get the money back; Send back an order
order_id/id/order:id
[refund|return] [my |the |]order {0}; ~I want [a refund|my money back] for order {0}; ~refund for order {0}; ~order {0} is broken, I want my money back; can I [return|get a refund for] order {0}; send back order {0}
[send|give|take] order {0} back; ~I want to [return|send back] order {0}; ~order {0} came broken, I want a refund; give me [a refund|my money back] for order {0}; [get|request] a refund for [my |]order {0}; ~I need [a refund|my money back] for [my |]order {0}; ~refund: order {0}; how do I return order {0}; can I send back [my |]order {0}; can I have my money back for order {0}
~order {0} does not work, I want [a refund|my money back]; refund me for order {0}; take back order {0}; ~I am not happy with order {0}, refund it; ~order {0} is bad, I want to return it; ~order {0} arrived broken, refund it; pay me back for order {0}; ~I'd like to return order number {0}; can I give back order {0}; request my money back for order {0}; will you take back order {0}; ~order {0} arrived, it is bad and I am not happy, send it back; will you pay me back for order {0}; ~order {0} does not work, take it back
~order {0} came to me broken, refund it; ~what came with order {0} was broken, I want a refund; ~order {0} came and it is broken, take it back; ~order {0} has arrived and it is bad, I want my money back; ~I am not happy with what arrived in order {0}, I want a refund; ~order {0} is bad, I am not happy with it, refund it; please pay me my money back for order {0}; pay back my money for order {0}

invoice: create_invoice send_invoice make_invoice
[Create|Make] an invoice[.|]; Invoices; Bill a customer; Write an invoice for an amount
customer/client/name:person amount/total:amount
[create|make|write] an invoice [for|to] {0} over {1}[| dollars| euros]; bill {0} {1} [dollars|euros]; ~invoice for {0}: {1}; invoice {0} for {1}[| dollars| euros]; ~new invoice, {0}, {1}; charge {0} {1} [dollars|euros]
[send|write] {0} an invoice [for|over|of] {1}[| dollars| euros]; [send|issue] an invoice [of|over] {1} [dollars |euros |]to {0}; [create|issue|make] an invoice of {1} [dollars|euros] for {0}; bill {0} for {1} [dollars|euros]; ~invoice to {0} over {1}; ~I need an invoice for {0}, {1} [dollars|euros]; ~bill for {0}: {1} [dollars|euros]; [send|write] {0} a bill [for|over|of] {1} [dollars|euros]
~invoice {0}, {1}; ~{0} has to be billed {1} [dollars|euros]; ~I have to [bill|invoice|charge] {0} {1} [dollars|euros]; make a bill of {1} [dollars|euros] for {0}; charge {0} with {1} [dollars|euros]; ~new invoice for {0}, total {1}; create an invoice, customer {0}, amount {1}; ~I want to invoice {0} for {1} [dollars|euros]; make an invoice with the [amount|total] {1} for {0}; ~{0} should be billed {1} [dollars|euros]; issue a bill to {0} over {1} [dollars|euros]; ~invoice with a total of {1} for {0}
~invoice for customer {0}, amount {1}; bill the customer {0} {1} [dollars|euros]; write an invoice to the customer {0} over {1}

ticket: create_ticket open_ticket new_ticket create_issue report_bug
[Create|Open] a [ticket|support ticket|issue][.|]; [New|Report an] issue; Report a [bug|problem]; File a ticket with a title
title/subject/summary:title priority/severity:priority?
[open|create|file|make] a [ticket|support ticket|new ticket] [called|titled|for|about] {0}; ~new ticket: {0}; report [an issue|a bug|a problem]: {0}; [open|create] a {1} priority ticket: {0}; file a bug [called|titled|about] {0}; create a ticket {0} with priority {1}; ~ticket: {0}
~new issue: {0}; ~bug: {0}; ~bug report: {0}; ~new bug: {0}; create [an issue|a support ticket|a bug report]: {0}; [open|file|make] a [ticket|new ticket|support ticket]: {0}; [open|create|file] an issue [called|titled|about|with the title] {0}; report a [bug|problem] [called|titled|with the title] {0}; ~I need a [new |support ]ticket [about|titled|called] {0}
~{1} priority ticket: {0}; ~new ticket {0}, priority {1}; ~ticket {0} with {1} priority; [open|file|report] a {1} priority [bug|issue]: {0}; make a ticket with [the |]title {0} and priority {1}; ~I want to [report|file] a [problem|bug]: {0}; ~there is a problem: {0}, open a ticket; ~I have a problem, open a ticket called {0}; write a [ticket|bug report] titled {0}; ~support ticket, title {0}; ~issue: {0}, severity {1}; file a ticket {0}, severity {1}; write a new support ticket about {0}; ~there is an issue, file a bug report about {0}; open a ticket with [severity|priority] {1} titled {0}

ticket: get_ticket ticket_status show_ticket
[Get|Show] [the status of |]a ticket[.|]; Ticket status; See whether a ticket is [open|closed|solved]; Look up a ticket
ticket_id/id/number:id
[what is|show|check] the status of ticket {0}; [show|open|get] [me |]ticket {0}; ~ticket {0}; is ticket {0} [closed|solved|open|done]; ~status of ticket {0}; what happened to ticket {0}
what's the status of ticket {0}; ~ticket {0} status; ~ticket number {0}; [look|pull] up ticket {0}; [find|fetch|check] ticket [number |]{0}; has ticket {0} been [closed|solved|done]; what is ticket {0} about; how is ticket {0} [doing|going|coming along]; [show|give|get] me the status of ticket {0}; is anyone working on ticket {0}; is ticket {0} still open
what's happening with ticket {0}; ~I want to see ticket {0}; was ticket {0} [closed|solved]; did anyone [solve|close] ticket {0}; how far is ticket {0}; any news on ticket {0}; where do we stand with ticket {0}; what is in ticket {0}; who is working on ticket {0}; what does ticket {0} say; is there any news on ticket {0}; what is going on with ticket {0}; what's going on in ticket {0}; is ticket {0} coming along; is anyone still on ticket {0}; has something happened with ticket {0}; where does ticket {0} stand; how does ticket {0} stand
look up ticket number {0}; pull up ticket {0}; look up the status of ticket {0}; pull the status of ticket {0}; fetch ticket {0}; fetch the status of ticket {0}; find ticket {0}; find out the status of ticket {0}; check on ticket {0}; how is it going with ticket {0}; how are we doing with ticket {0}; what are they doing on ticket {0}; how is ticket number {0} coming along; did they close ticket {0}; did somebody solve ticket {0}; did we solve ticket {0} yet; did we close ticket {0} yet; is something happening on ticket {0}; is something going on in ticket {0}; has something been done on ticket {0}
look ticket {0} up; look up what ticket {0} says; pull ticket {0} up; please pull up the ticket {0}; check ticket {0}; check if ticket {0} is [open|closed]; check whether ticket {0} is done; ~something happened with ticket {0}, show it

ticket: close_ticket resolve_ticket close_issue
Close a ticket[.|]; Resolve an issue; Mark a ticket as [done|solved|resolved|closed]; Finish a ticket
ticket_id/id/number:id
[close|resolve] [the |]ticket {0}; ~ticket {0} is [done|solved], close it; mark ticket {0} as [closed|solved]; set ticket {0} to [closed|resolved]; ~ticket {0} can be closed; [finish|end] ticket {0}
mark ticket {0} [as |][done|resolved|finished]; set the status of ticket {0} to [closed|done|resolved]; ~close ticket: {0}; ~ticket {0} should be [closed|resolved]; ~ticket {0} is [fixed|finished|resolved], close it; ~we are done with ticket {0}; [close|finish] [the |]ticket number {0}; ~I want to close ticket {0}; ~I have [fixed|solved|finished] ticket {0}; close the issue with ticket number {0}
~we have [solved|fixed] ticket {0}, mark it as done; ~we can close ticket {0}; can you close ticket {0}; ~ticket {0} can be marked as done; ~I am done with ticket {0}, close it; close ticket {0}, it is [fixed|solved|done]; ~the issue in ticket {0} is fixed, resolve it; put ticket {0} to an end; end the issue with ticket {0}; ~ticket {0} is at an end, mark it as finished

ticket: assign_ticket assign_task assign_issue
Assign a [ticket|task] to someone[.|]; Assign work; Give a ticket to someone; Make someone responsible for [a ticket|an issue]
ticket_id/id/issue:id assignee/user/name:person
assign ticket {0} to {1}; give ticket {0} to {1}; ~ticket {0} is for {1}; {1} should [do|take] ticket {0}; make {1} responsible for ticket {0}; let {1} [work on|handle] ticket {0}
assign {1} to ticket {0}; give {1} [the |]ticket {0}; ~ticket {0} goes to {1}; hand ticket {0} [over |]to {1}; pass ticket {0} [on |]to {1}; ~assign: ticket {0}, {1}; ~{1} will [do|take|handle|work on] ticket {0}; put {1} on ticket {0}; let {1} [do|take] ticket {0}; ~ticket {0} should go to {1}
set the assignee of ticket {0} to {1}; make {1} the assignee of ticket {0}; assign the ticket number {0} to {1}; get {1} to [do|take|work on|handle] ticket {0}; ~{1} is responsible for ticket {0}; ~{1} should [work on|handle] ticket {0}; ~ticket {0}: {1} will do it; ~ticket {0}, assign to {1}; ~I want {1} to [take|handle] ticket {0}; can {1} take ticket {0}; hand {1} ticket {0}; pass {1} ticket {0}; can {1} do ticket {0}; move ticket {0} to {1}; ~please move ticket {0} over to {1}
pass the ticket {0} over to {1}; set {1} as the assignee of ticket {0}; set ticket {0} to assignee {1}; ~ticket {0}, {1} will take it; ~ticket {0}: give it to {1}; ~ticket {0}, let {1} handle it; hand the ticket {0} to {1}; hand over ticket {0} to {1}; please move ticket {0} over to {1}; move ticket number {0} to {1}; set {1} as assignee for ticket {0}; set the assignee of ticket number {0} to {1}; set {1} to work on ticket {0}; make {1} the one who takes care of ticket {0}
put {1} down as assignee of ticket {0}; ~{1} comes in as assignee of ticket {0}

file: read_file open_file load_file cat_file
[Read|Open] a file[.|]; Returns the [text|content] of a file; Show [what is in|the contents of] a file; Load a file
path/filename/file/file_path:file
[read|open|show|load] [me |][the file |]{0}; what is in [the file |]{0}; show me the [content|contents|text] of [the file |]{0}; print [the file |]{0}; ~contents of {0}; what does [the file |]{0} say; display {0}
read [the file |]{0}; open [the file |]{0}; what's in [the file |]{0}; ~cat {0}; [display|print|get|read] the [content|contents|text] of {0}; let me see [the file |]{0}; ~file {0}, what does it say; ~I want to [read|see|open] [the file |]{0}; ~I need [the text of |the contents of ]{0}; what does [the file |]{0} contain; ~read: {0}; look into [the file |]{0}
[give|get|tell] me the [content|contents|text] of [the file |]{0}; what text is in {0}; can you [open|read] {0}; what is written in [the file |]{0}; display the file {0}; read me what is in {0}; ~content of {0}; what are the contents of {0}; let me look into {0}; let me read {0}; show me what is written in {0}; what does {0} have in it; cat the file {0}; print what {0} contains
what text does {0} contain; tell me what {0} contains; what does the document {0} contain; look at [the file |]{0}; have a look at what is in {0}; look inside {0}; what words does the file {0} contain; does {0} contain any text, show it; show all that {0} contains; what does the text file {0} contain

file: delete_file remove_file rm
[Delete|Remove] a file[.|]; Deletes [a|one] file; Erase a file that is not needed any more; Get rid of a file
path/filename/file/file_path:file
[delete|remove|erase] the file {0}; delete [file |]{0}; get rid of [the file |]{0}; ~I do not need the file {0} any more; ~{0} can be deleted; [remove|erase] {0}; throw away {0}
~delete: {0}; ~rm {0}; ~{0} can be [removed|erased|thrown away]; throw [the file |]{0} away; throw away the file {0}; ~I don't need {0} any more; ~I no longer need [the file |]{0}; ~{0} should be [deleted|removed]; ~{0} must go; ~I want to [delete|remove|erase] [the file |]{0}; delete the old file {0}; please delete {0}; put {0} in the [trash|bin]
move {0} to the [trash|bin]; ~the file {0} is not needed any more, delete it; can you [delete|remove] {0}; ~{0} is [old|not needed], get rid of it; make {0} disappear; ~the file {0} can go; throw {0} in the [trash|bin]; trash {0}; ~{0} must disappear; wipe {0}; wipe the file {0}; ~the old file {0} must go, erase it; rm the file {0}; ~I don't want the file {0} any more; ~we don't need the file {0}; let the file {0} disappear; ~{0} has to disappear

file: copy_file cp duplicate_file
Copy a file[.|]; File copy; Duplicate a file under a new name; Make a copy of a file
source/from/src:file destination/to/dest/target:file
copy [the file |]{0} to {1}; make a copy of {0} [called|named|as] {1}; duplicate {0} as {1}; ~copy of {0} to {1}; [save|put] a copy of {0} [as|under] {1}; back up {0} to {1}
copy {0} [as|into|under] {1}; ~cp {0} {1}; ~copy: {0} to {1}; duplicate [the file |]{0} [to|under the name] {1}; make a copy of [the file |]{0} under [the name ]{1}; [create|make] a duplicate of {0} [called|named] {1}; ~I want a copy of {0} [called|named] {1}; ~I need a copy of {0} as {1}; ~{0} should be copied to {1}; back up [the file |]{0} as {1}
save a copy of the file {0} to {1}; [make|create] a backup of {0} [called|named|as] {1}; copy the contents of {0} to {1}; copy from {0} to {1}; put a duplicate of {0} under {1}; ~backup of {0} to {1}; ~{0} should be duplicated as {1}; keep a copy of {0} as {1}; keep a backup of {0} under the name {1}; copy the contents of {0} into {1}; back {0} up [to|as] {1}; back up the file {0} under the name {1}

file: rename_file move_file mv
[Rename|Move] a file[.|]; File renaming; Give a file a new name; Change the name of a file
old_name/source/from/path:file new_name/destination/to:file
rename [the file |]{0} to {1}; [move|rename] {0} to {1}; change the name of {0} to {1}; ~{0} should be called {1}; give {0} the [new |]name {1}; call the file {0} {1} from now on
move [the file |]{0} to {1}; rename {0} as {1}; ~mv {0} {1}; ~rename: {0} to {1}; ~{0} should be [renamed to|named] {1}; ~the new name of {0} is {1}; change the file name {0} to {1}; change the name of [the file |]{0} [to|into] {1}; ~I want to rename {0} to {1}; from now on {0} is called {1}
give [the file |]{0} a new name: {1}; ~{0} should have the name {1}; ~{0}, rename it to {1}; make {1} the new name of {0}; ~I want {0} to be [called|named] {1}; rename from {0} to {1}; set the name of {0} to {1}; ~I want to move {0} to {1}; ~{0} is now called {1}, rename it; move the file from {0} to {1}

file: create_file write_file save_file
[Create|Write] a file[.|]; Writes text to a file; Make a new file with a text; Save [text|content] in a file
path/filename/file:file content/text/data:message
[create|write|make] a file {0} with [the |]content {1}; write {1} [to|into] [the file |]{0}; save {1} [in|to|as] {0}; ~new file {0}: {1}; put the text {1} into {0}; create {0} containing {1}
[create|write|make] [a file |]{0} [with|containing] the text {1}; make a file {0} [containing|that says] {1}; write the text {1} [to|into|in] [the file |]{0}; save the text {1} [in|to|as] [the file |]{0}; ~file {0}, text: {1}; ~file {0} with [the |]content {1}; put {1} in [a file|the file|a new file] [called |named |]{0}
[store|keep] {1} in [the file |]{0}; write to the file {0}: {1}; write in [the file |]{0}: {1}; [make|create|save] a [new |]file [called|named] {0} [with the text|containing|that says] {1}; ~I need a file {0} [that says|containing] {1}; the content of {0} should be {1}; ~{0} should contain {1}; write a file called {0} saying {1}; ~{0} should say {1}, write it; store the text {1} in {0}; create {0}, it should contain {1}; create a file {0} saying {1}; keep the text {1} in a file named {0}
put {1} into [the file |]{0}; put the words {1} into the file {0}; make a file called {0} saying {1}; save a file called {0} that says {1}

file: list_files ls list_directory show_files
[List|Show] [the |]files in a folder[.|]; Directory listing; See what files a folder has; Look into a directory
path/directory/folder/dir:word
[list|show] [me |]the files in [the folder |]{0}; what is in the folder {0}; which files are in [the folder |]{0}; ~files in {0}; list the {0} [folder|directory]; what files does the {0} [folder|directory] have
~ls {0}; what's in the {0} [folder|directory]; [list|show|get] all files in the [folder|directory] {0}; [list|show|display] the [contents|content] of the {0} [folder|directory]; ~folder {0}, which files; open the [folder|directory] {0}; which files does the [folder|directory] {0} [have|contain]; what does the [folder|directory] {0} contain; look into the [folder|directory] {0}; ~list of files in {0}; ~contents of the folder {0}
are there [any |]files in the {0} [folder|directory]; what files are there in the [folder|directory] {0}; ~I want to see the files in {0}; give me a list of [the |]files in {0}; open the {0} [folder|directory]; see what is in the {0} folder; display the files in {0}; look what files are in {0}; let me see all files in the folder {0}; ls the {0} directory; ~directory {0}: all files, please
what's in the directory {0}; what's in the folder {0}; what's inside the {0} folder

file: search_files find_file find_files
[Search|Find] files[.|]; File search; Look for files by name; Find files that [contain|mention] a word
query/pattern/name/keyword:word
[find|search for] [a file|files] [named|called|with the name] {0}; where is the file [named|called] {0}; ~files named {0}; search my files for {0}; which files [contain|mention] {0}; look for {0} in my files
[look|search] for [the |a |]file [called|named] {0}; find [all |]files [containing|that contain|that mention] {0}; ~file search: {0}; do I have [a file|files] [called|named] {0}; is there a file [named|called|with the name] {0}; in which file is {0}; find {0} in my files; ~I am looking for [a|the] file [called|named] {0}; which of my files [has|mention|contain] the word {0}; search all files for {0}
where did I save the file [called|named] {0}; search for {0} in [all|my] files; find my file [called|named] {0}; which file has {0} in it; are there [any |]files [called|named|that mention] {0}; ~I can't find the file {0}; in which files is the word {0}; where is my file with the name {0}; did I save a file called {0}; ~I can't find my file named {0}, where is it; does a file with {0} in its name exist; does any file contain {0}

shell: run_command execute_command shell bash
[Run|Execute] a [shell |]command[.|]; Shell; Type a command in the terminal; Run something on the command line
command/cmd:word
[run|execute] the command {0}; run {0} in the [shell|terminal]; type {0} in the terminal; ~command: {0}; [execute|start] {0} on the command line; use the shell to run {0}
[run|execute|start] {0} in [the|a] [terminal|shell]; ~shell: {0}; ~terminal: {0}; ~shell command {0}; ~run command: {0}; [enter|type] {0} [on|in] the [command line|shell]; enter the command {0}; execute the shell command {0}; run the [terminal|bash] command {0}; ~I want to run the command {0}
let {0} run in the [shell|terminal]; use the [terminal|command line] to [start|execute] {0}; run {0} on the command line; type the command {0}; what does the command {0} [print|show|return]; can you run the command {0}; run {0} in bash; execute {0} in bash; start the command {0}; ~bash: {0}; what does {0} print in the shell; show what the command {0} returns; what does the shell return for {0}

database: run_query sql_query query_database get_rows
[Run|Execute] a [database query|query][.|]; Query [the |a ]database; Get rows [of|from] a table; Select rows with a limit
table/table_name:word limit/rows/count:small
[show|get|select|read] {1} rows [from|of] [the table |table |]{0}; query the table {0} with limit {1}; ~first {1} rows of {0}; give me {1} rows [from|of] the {0} table; select from {0} limit {1}; ~table {0}, {1} rows
select {1} rows from {0}; [show|get|give] me the first {1} rows [of|from] [the table |]{0}; select * from {0} limit {1}; [fetch|load|print] {1} rows [of|from] [the table |]{0}; query {0} with limit {1}; query the {0} table, {1} rows; ~{1} rows of {0}; ~rows of {0}, limit {1}; ~I need {1} rows [from|of] [the table |]{0}
read the first {1} rows from the {0} table; [fetch|load|print] the first {1} rows of table {0}; what are the first {1} rows of {0}; run a query on {0} with limit {1}; ~I want to see {1} rows of {0}; [take|pick] {1} rows from the table {0}; query the database: table {0}, limit {1}; run a query: {1} rows from {0}; let me see {1} rows of the {0} table; take the first {1} rows of {0}; what is in the first {1} rows of the {0} table

database: count_rows count_records table_size
Count [the |]rows of a table[.|]; Number of records; How many [rows|records|entries] a table has; Size of a table
table/table_name:word
how many [rows|records|entries] [are|are there] in [the table |]{0}; count the [rows|records] [of|in] [the table |]{0}; ~row count of {0}; how big is the table {0}; ~number of rows in {0}; count [everything in|all of] the {0} table
how many [rows|records|entries] does [the table |]{0} have; how many [rows|records|entries] are in the {0} table; count the [entries|records|rows] in the {0} table; ~number of [records|entries|rows] in the table {0}; what is the [number of rows|row count] [of|in] [the table |]{0}; how [big|large|long] is the {0} table; what is the size of the [table |]{0} table; ~count rows in {0}; ~row count: {0}
count all rows of {0}; [give|get|show] me the [row count|number of rows] of {0}; ~I need the [row count|number of records] of {0}; count everything in the table {0}; ~size of the table {0}; how large is the table {0}; tell me how many rows {0} has; what size is the {0} table; how long is the table {0}; how many [rows|records] has the table {0}; count up all of the table {0}; ~table {0}, how many rows; do a row count of {0}
how long is the {0} table, in rows; how large is {0}, in rows; how big is the {0} table; how large is the {0} table; show me how many rows are in {0}; tell me the number of rows in {0}

file: open_website open_url browse fetch_url visit_page
[Open|Fetch] a [website|web page|URL][.|]; Browser; Visit a [page|site|link]; Go to a [website|web page]
url/address/website/link:url
[open|visit|load|fetch] {0}; go to {0}; show [me |]the [website|page] {0}; ~I want to [see|visit] {0}; what is on {0}; [open|browse to] the [page|website|link] {0}; take a look at {0}
[open|visit|load|fetch] the [website|page|site|link] {0}; go to the [website|page|site] {0}; browse [to |]{0}; ~open: {0}; ~website {0}; what is on the [website|page|site] {0}; take me to the [page|website|site] {0}; show me {0}; what does the [website|page|site] {0} say; ~I want to [open|look at] {0}; look at [the page |the website |]{0}; follow the link {0}
[open|show] {0} in [the|a|my] browser; point the browser to {0}; let me see [the page |the website |]{0}; [get|read|load] the [page|web page] {0}; can you [open|visit] {0}; what can I see on {0}; have a look at {0}; ~the website {0}, please; bring up the page {0}; bring me to the [page|site] {0}; bring up {0} in the browser; follow this link: {0}; ~link: {0}; take a look at the page {0}; point my browser to {0}; let me have a look at {0}

website: check_website ping site_status is_up
Check [whether|if] a [site|host] is up[.|]; Ping a host; See whether a website [is online|is down|works|responds]; Website status
host/url/domain/website:url
is {0} [up|down|online|working]; check [if|whether] {0} is [up|down|online]; ping {0}; ~status of {0}; does {0} respond; can {0} be reached; why is {0} [down|slow]
is the [website|site|server|host] {0} [up|down|online|working]; check [if|whether] [the website |the site ]{0} [works|responds|is working]; ~ping: {0}; [send a ping to|do a ping of] {0}; does [the website |the site ]{0} [work|respond|answer]; is {0} [reachable|offline|slow|alive]; what is the status of [the site |]{0}; ~{0} status; check the status of {0}
is {0} still [up|online|working]; see [if|whether] {0} [is up|responds|is online]; is [the website |]{0} not working; is there a problem with the [website|site] {0}; can you ping {0}; can you reach {0}; test [if|whether] {0} [is up|works|is reachable]; ping the [host|site|server] {0}; ~I can't reach {0}, is it [down|offline]; has {0} gone [down|offline]; why does {0} not respond; why is the site {0} so slow; can the site {0} be reached; is {0} alive; does {0} still work; did {0} go down; does the host {0} answer; is there an answer from {0}; is there a problem with {0}, it is slow; test the site {0}; why did {0} go offline; is the site {0} alive; is the host {0} reachable; has the website {0} gone down
did the site {0} go down; did the website {0} go offline; why did the site {0} go down; when did {0} go down; has the site {0} gone offline; ~{0} has gone down, check it; has {0} gone down again

app: open_app launch_app start_app run_app
[Open|Launch|Start] an app[.|]; [App launcher|Starts an app]; Run an app by name; Bring up an application
app/name/app_name:word
[open|launch|start|run] the app {0}; [open|launch|start] the {0} app; [open|launch] {0}; ~I want to use the {0} app; bring up the {0} app; ~app: {0}
run the {0} app; bring up the app {0}; [fire|start|boot] up the {0} app; [open|start|launch|run] the [application|program] {0}; [open|start|launch|run] the {0} [application|program]; ~{0} app, please; ~open app: {0}; ~launch: {0}; ~I need the [app|application] {0}; ~I want to [open|start] the app {0}; load the {0} app; let me use the {0} app
can you [open|start|launch] the app {0}; go to the {0} app; get the {0} app [started|running]; show me the {0} app; switch to the {0} app; start up the {0} [program|application]; ~I'd like to use the app {0}; open up the {0} app; bring the {0} app up; switch to the app {0}; load the app {0}; fire up the app {0}; get the app {0} running; boot the {0} app; ~I want the app {0} started
fire up the application {0}; boot up the app {0}; ~fire up {0}; boot the app {0}; switch over to the {0} app; ~please get the app {0} started

server: restart_server restart_service reboot restart
Restart a [server|service][.|]; Service restart; Reboot a server that hangs; Turn a server off and on again
name/service/server/service_name:word
[restart|reboot] the [server|service] {0}; [restart|reboot] {0}; ~the {0} [server|service] hangs, restart it; turn the {0} [server|service] off and on again; bounce the {0} service; ~restart of the service {0}
[restart|reboot] the {0} [server|service]; ~restart: {0}; ~{0} [server|service] restart; ~{0} hangs, [restart|reboot] it; ~the [server|service] {0} [hangs|is stuck|does not respond], [restart|reboot] it; turn the [server|service] {0} off and on; do a [restart|reboot] of [the server |the service |]{0}; bounce the [server|service] {0}; ~I need [a restart|a reboot] of {0}
~I need to [restart|reboot] [the server |]{0}; ~the {0} server needs [a restart|a reboot]; can you [restart|reboot] {0}; stop and start the {0} [service|server][| again]; start the {0} [service|server] again; give the {0} [service|server] a [restart|reboot]; ~please reboot the {0} server; ~{0} is stuck, restart the service; ~{0} does not respond, reboot the server; bounce {0}; ~{0} needs to be [restarted|rebooted]; get the {0} service going again; kick the {0} service, it is stuck; ~the {0} server must be [restarted|rebooted]; get the server {0} going again; give the server {0} a kick, it hangs
~the server {0} does not respond; ~the service {0} does not respond, restart it; ~{0} will not respond, restart the server

server: get_logs show_logs read_logs fetch_logs
[Get|Show] [the |]logs of a service[.|]; Service logs; Read the last log lines of a service; Print the log
service/name/app:word lines/limit/count:small?
[show|get|fetch|read] [me |]the logs of {0}; what do the logs of {0} say; ~logs of {0}; [show|give] me the last {1} [log |]lines of {0}; ~{0} logs; what happened in the {0} service; print the logs [of|for] {0}
[show|get|fetch|print] the last {1} log lines [of|for|from] {0}; ~last {1} [log |]lines of the {0} log; ~logs for {0}, {1} lines; ~logs: {0}; ~log of the service {0}; [show|give|get] me the logs [for|from] [the service |]{0}; what is in the logs of [the service |]{0}; [read|print] the last {1} lines of the {0} logs; ~{0} logs, last {1} lines; tail the logs of {0}; what does the {0} log say
~{1} log lines of {0}; ~I need the logs [of|for|from] {0}; ~I want to see the last {1} [log |]lines of {0}; what happened in the service {0}, show the logs; [open|check] the logs of the {0} service; let me see the logs of {0}; print {1} lines of the {0} log; fetch {1} log lines for {0}; what do the last {1} lines of the {0} log say; give me {1} lines from the logs of {0}; tail the {0} log, {1} lines; look at the logs of {0}; look into the {0} logs; what has happened in the {0} service, check the logs
~I want to read the last {1} lines of the {0} log; ~I need to see the last {1} lines of the {0} logs; ~I want to see the logs of {0}; ~I have to see the {0} logs

summary: summarize summarize_file summarize_document
Summarize a [document|file][.|]; Document summary; Give a short summary of a file; The main points of a document in short
file/document/path:file
summarize [the document |the file |]{0}; give me a summary of {0}; ~summary of {0}; what is {0} about[| in short]; sum up {0}; [write|make] a short summary of {0}
what is [the file |the document ]{0} about; ~{0}, in short; ~{0} summary; ~summary: {0}; what's in {0}, in short; sum up [the document|the file] {0}; [get|show|write] me a [short |brief |]summary of [the file |the document |]{0}; what are the main points of {0}; tell me the main points of {0}; tell me what {0} is about; tell me in short what {0} says; ~I need a [short |brief |]summary of [the document |]{0}
~short summary of {0}; ~tldr of {0}; ~tldr: {0}; [give|make] me a brief summary of [the file |]{0}; can you summarize {0}; what does {0} say in short; summarize {0} in a few [words|sentences]; sum {0} up in a few [words|sentences]; put {0} in a few [words|sentences]; what is the main point of {0}; ~main points of {0}; ~I have no time to read {0}, sum it up; ~I have no time for {0}, give me a summary; ~I have no time to read {0}, what does it say in short; what is {0} about in a few words; make a summary of {0} in a few sentences
what is the point of {0} in short; tell me the main point of {0}; ~the main point of the document {0}; sum up the main point of {0}

book: find_book search_books book_search get_book
[Find|Search] [a book|books][.|]; Book search; Look for a book by title; Books in the library
title/book/name:title
[find|search|look for] the book {0}; do you have the book {0}; who wrote [the book |]{0}; ~book: {0}; ~I want to read the book {0}; ~I am looking for the book {0}; is there a book called {0}
who is the author of [the book |]{0}; find [me |]a book [called|titled|with the title] {0}; search for [the |a ]book [called|titled] {0}; is the book {0} [there|in the library|any good]; ~book with the title {0}; ~the book {0}, do you have it; do you have a book [called|titled] {0}; ~I'm looking for a book [called|titled] {0}; when was the book {0} written; ~author of the book {0}; what is the book {0} about; search the library for {0}
does the library have [the book |]{0}; where can I find the book {0}; look up the book {0}; which author wrote [the book |]{0}; ~I need the book {0}; ~I'd like to read the book {0}; who has written the book {0}; show me the book {0}; tell me about the book {0}; search books for {0}; ~book search: {0}; find the novel {0}; who wrote the novel {0}; what is the novel {0} about; is the novel {0} good

vacation: request_vacation book_leave request_time_off
Request [vacation|leave|time off][.|]; Vacation request; Ask for days off from work; Take [leave|holidays] between two dates
start_date/from/start:date end_date/to/until:date
request [vacation|leave|time off] from {0} to {1}; ~I want [vacation|time off|leave] from {0} to {1}; book [my |]leave from {0} until {1}; ~vacation from {0} to {1}; [ask for|request] days off from {0} to {1}; ~I'm away from {0} until {1}, request leave
~[leave|time off|days off|holiday] from {0} to {1}; ~leave request, {0} to {1}; ~vacation request: {0} to {1}; ~vacation, {0} until {1}; [take|book|request] [vacation|time off|leave|holidays] from {0} until {1}; ~I need [time off|days off|leave|a vacation|holidays] from {0} [to|until] {1}; ask for [leave|vacation|time off] from {0} [to|until] {1}; put me down for vacation from {0} to {1}; ~I would like [vacation|leave|days off] from {0} [to|until] {1}
~I will be [away|on vacation|on leave|off] from {0} [to|until] {1}, request it; ~I want to be off [work |]from {0} to {1}; can I [have|get|take] [time off|vacation|leave] from {0} to {1}; book a vacation from {0} to {1}; plan my vacation from {0} to {1}; ~I want to take [days off|leave] between {0} and {1}; request leave between {0} and {1}; ~I am on holiday from {0} until {1}, book it; put me down for leave between {0} and {1}; ~I plan to be on vacation from {0} until {1}, ask for leave; ~holiday request from {0} to {1}; get me days off work from {0} until {1}

sports: get_score game_score sports_score match_result
Get the [score|result] of a [team|game][.|]; Sports scores; Result of the last match of a team; Who won a game
team/club/team_name:artist
[what is|get|show] the score of [the |]{0}[ game| match|]; did {0} win[| today| last night]; how did {0} play[| yesterday]; ~score of {0}; who won the {0} game; ~{0} result; what was the result of the {0} match
~{0} score; ~{0} [game|match] [score|result]; did {0} [win|lose] [yesterday|last night|today]; did {0} [win|lose]; did {0} [win|lose] [the|their|their last] [game|match]; how did {0} play in their last [game|match]; how did the {0} [game|match] [end|go|turn out]; how did {0} do [yesterday|last night] in their [game|match]; has {0} won; who won the {0} match; what's the [score|result] of the {0} [game|match]
~score: {0}; ~result of the {0} game; ~sports score for {0}; is {0} winning; is {0} losing the match; [get|check|show|tell] me the [score|result] of the {0} [game|match]; what was the score [of|in] the {0} game; [get|give|show|tell] me the last [result|score] of the team {0}; ~I want to know [if|whether] {0} won; who won when {0} played; did the team {0} win; has {0} lost; how many goals did {0} score; how did the team {0} play; has the team {0} won or lost; who played against {0} and who won; is the team {0} winning or losing; how did the match of {0} end; how did it end for {0} in the last game; how did it go for {0} in yesterday's match; who won yesterday, {0} or the other team; who did {0} play against last night; how many goals did {0} score yesterday; how did the last game of {0} turn out; how did {0} turn out in the match; did {0} win against the other team
has {0} won or lost the game; has {0} lost the match; did {0} win or lose; is {0} winning or losing; is {0} winning the game; is {0} losing the game
""")
